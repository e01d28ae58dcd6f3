"""The two designs that Batchline's own replaced, kept runnable so that the claim stays checked."""
