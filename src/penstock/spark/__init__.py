"""Every topic a Spark table: the data source, the sink, a tuned session, and ready-made pipelines."""
