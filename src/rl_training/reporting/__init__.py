"""What is shown of runs and configs: charts, curves, reports."""
