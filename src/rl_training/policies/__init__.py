"""What acts: the policies of all algorithms."""
