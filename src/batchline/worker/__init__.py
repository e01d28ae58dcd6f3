"""The loop that runs it: claim, dispatch, settle."""
