"""Plans of jobs before they exist: estimates of what they need."""
