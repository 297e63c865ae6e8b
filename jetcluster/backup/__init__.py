"""Backup and restore of an account's streams, without Spark: restore points in a folder or in S3 (docs/backup.md).

In it: `plan` decides, `sequences`, `segment` and `point` are the forms of what is stored, none of them does I/O;
`consumers` keeps consumers within the bounds of an archive; `storage` is the port, `folder` and `s3` are its sides;
`account` reads the servers, `segment_writer` makes their messages segments; `run`, `restore`, `verify` and `retention`
do the work. Not in it: the command line, and the client. It promises that a point that is there is whole:
blobs are named by their contents and never change, and a point is written after everything it names.
"""
