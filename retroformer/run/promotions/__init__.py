"""Which adapter is served as `reflector`: records of promotions and rollbacks with their evidence."""
