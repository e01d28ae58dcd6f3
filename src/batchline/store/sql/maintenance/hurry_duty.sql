-- hurry_duty: a duty that was left unfinished, so that other work gets its turn, is due again at once.
UPDATE duties SET due_at = now() WHERE name = %(name)s
