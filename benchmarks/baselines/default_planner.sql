-- default_planner: PostgreSQL's default planning. Batchline's sessions disable table scans and use generic plans.
RESET ALL
