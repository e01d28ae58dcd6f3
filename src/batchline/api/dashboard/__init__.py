"""Routes of the dashboard: sign-in, what its pages read, live updates, and the pages themselves."""
