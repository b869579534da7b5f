"""The pages of the site, each a function of the site and the query string."""
