"""Jobs on Spark around a stream: archive, restore, snapshot, lakehouse, audit, verify (docs/pipeline.md)."""
