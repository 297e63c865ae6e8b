"""Jobs on Spark around a stream: archive, restore, snapshot, audit, verify (docs/pipeline.md)."""
