"""Reports, comparisons and plots of runs and configs."""
