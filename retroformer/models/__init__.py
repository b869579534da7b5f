"""Model files shared by train and serve."""
