"""Types of events that webhooks can report."""

# A batch has ended. Completion hooks get only these.
END_EVENTS = ("batch.completed", "batch.failed", "batch.expired", "batch.cancelled")
# A batch waits for a decision, or somebody has decided; or a rule has paused it.
DECISION_EVENTS = ("batch.approval_requested", "batch.approved", "batch.rejected", "batch.paused")
EVENTS = (*END_EVENTS, *DECISION_EVENTS)
