"""The only place that speaks SSH."""
