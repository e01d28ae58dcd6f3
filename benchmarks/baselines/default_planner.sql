-- default_planner: as PostgreSQL plans by itself. Batchline's sessions tell it not to scan tables and to plan once.
RESET ALL
