"""The two designs that Batchline's design replaced, kept runnable so that the comparison can be repeated."""
