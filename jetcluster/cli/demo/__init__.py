"""`jetcluster demo`: a cluster of three servers of its own shows in some seconds what an ack, a replica, a bucket and a
mirror are worth, and proves each of it."""
