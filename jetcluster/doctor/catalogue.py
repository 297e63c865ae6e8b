"""The kinds of findings. A code never changes its meaning, and one that is not used any more is not used again.

1xx: a server, 2xx: the cluster, 3xx: streams, 4xx: consumers, 5xx: configuration, 6xx: the machine. docs/findings.md is
made of this table (`python -m jetcluster.doctor.page`).
"""

from __future__ import annotations

from typing import Final

from jetcluster.doctor.finding import FindingKind, Severity

BAD, WARN, NOTE = Severity.BAD, Severity.WARN, Severity.NOTE

ABSENT: Final = FindingKind(
    "JC101", BAD, "A server of the cluster is absent", "symptoms/cluster.md#a-server-of-the-cluster-is-absent",
    "It has stopped, or no link to it comes up. Streams go on while a majority of their replicas is there",
    "Start it again, or see in its log why it ends; check the network between the servers. One that never "
    "returns: `jetcluster decommission`",
)  # fmt: skip
JOURNAL_HANGS: Final = FindingKind(
    "JC102", BAD, "A write to the journal does not return", "symptoms/servers.md#the-disk-hangs",
    "The disk or its driver hangs. The server leads nothing and does not vote until the write returns",
    "Look at the disk (`dmesg`, `iostat -x 1`). Move the store to another disk or replace the server",
)  # fmt: skip
DISK_FULL: Final = FindingKind(
    "JC103", BAD, "The disk is full", "symptoms/servers.md#the-disk-is-full",
    "Publishes to streams that this server leads are refused, and leaderships move away",
    "Free space, grow the volume, or lower max_bytes or max_age of streams. Reads go on",
)  # fmt: skip
STORE_FAILS: Final = FindingKind(
    "JC104", BAD, "The data store fails or is very slow", "symptoms/servers.md#the-data-store-fails",
    "Commits or flushes fail or do not end, so this server answers no reads while others can",
    "Look at the disk (`dmesg`), and at the log for the error",
)  # fmt: skip
DATA_DAMAGED: Final = FindingKind(
    "JC105", BAD, "Files of the data store are damaged", "symptoms/replicas.md#the-data-store-is-damaged",
    "A checksum did not match. The data come again from other replicas, those of one replica cannot",
    "Restart the server: it renews the store. Look for the cause: disk, memory, file system",
)  # fmt: skip
DESCRIPTORS_OUT: Final = FindingKind(
    "JC106", BAD, "No file descriptors are left", "symptoms/servers.md#file-descriptors-run-out",
    "Clients are refused, and the reserve for store and links is in use",
    "Raise the limit (`LimitNOFILE=`, `ulimit -n`), or close clients",
)  # fmt: skip
CLOCK_OFF: Final = FindingKind(
    "JC107", BAD, "The clock of a server is wrong", "symptoms/servers.md#the-clock-is-wrong",
    "It is more than 5 s off the time on which the majority agrees; the server leads nothing until it is right",
    "Repair the time synchronization (chrony, ntpd) on that machine",
)  # fmt: skip
LOOP_STANDS: Final = FindingKind(
    "JC108", BAD, "The event loop stood still", "symptoms/servers.md#the-event-loop-stood-still",
    "The process got no processor, or swaps, for half of the last 5 s",
    "Look for load beside the server, for limits of CPU (throttling of the control group), for swapping",
)  # fmt: skip
MEMORY_OUT: Final = FindingKind(
    "JC109", BAD, "Memory is nearly out", "symptoms/servers.md#memory-is-nearly-out",
    "The kernel will end the process at the limit",
    "Raise the memory limit, or move streams to other servers",
)  # fmt: skip
REMOVED: Final = FindingKind(
    "JC110", BAD, "A server was removed from its cluster and came back",
    "symptoms/servers.md#a-removed-server-comes-back",
    "Its store belongs to a member that the cluster has removed for good",
    "Start it with an empty store, or have its old store set aside; it joins as a new member then",
)  # fmt: skip
META_REFUSED: Final = FindingKind(
    "JC111", BAD, "A server does not follow the leader of the meta group",
    "symptoms/replicas.md#a-replica-does-not-follow-its-leader",
    "Its log of the meta group contradicts the leader's, or the leader's key is not the known one",
    "Read the reason; a server whose store was mixed up has to join anew with an empty store",
)  # fmt: skip
LAME_DUCK: Final = FindingKind(
    "JC112", NOTE, "A server is going away", "symptoms/servers.md#a-server-goes-away-and-stays",
    "It was told to stop and lets its clients move first",
    "Nothing: it ends by itself",
)  # fmt: skip
CLOCK_SKEW: Final = FindingKind(
    "JC113", WARN, "The clock of a server differs from the cluster's time", "symptoms/servers.md#the-clock-is-wrong",
    "Beyond 5 s it would lead nothing. Ages, TTLs and schedules go by the cluster's time",
    "Repair the time synchronization (chrony, ntpd) on that machine",
)  # fmt: skip
MEMORY_NEAR: Final = FindingKind(
    "JC114", WARN, "A server uses most of the memory that it may", "symptoms/servers.md#memory-is-nearly-out",
    "At 92 % of the limit of its control group it gives its leaderships away",
    "Raise the limit, or move streams to other servers",
)  # fmt: skip
DESCRIPTORS_NEAR: Final = FindingKind(
    "JC115", WARN, "Most file descriptors are used", "symptoms/servers.md#file-descriptors-run-out",
    "Clients are refused before store and links run out of them",
    "Raise the limit (`LimitNOFILE=`, `ulimit -n`)",
)  # fmt: skip
DISK_NEAR: Final = FindingKind(
    "JC116", WARN, "Little space is left on the disk", "symptoms/servers.md#the-disk-is-full",
    "When it is full, publishes are refused. Other programs may share the disk",
    "Free space or grow the volume",
)  # fmt: skip
STORAGE_NEAR: Final = FindingKind(
    "JC117", WARN, "The streams of a server hold most of what they may",
    "symptoms/requests.md#insufficient-resources-10023",
    "Beyond the limit publishes are refused (10023)",
    "Raise max_file_store or max_memory_store, or lower limits of streams",
)  # fmt: skip
RESERVED_NEAR: Final = FindingKind(
    "JC118", WARN, "max_bytes of streams reserve most of a server's storage",
    "symptoms/requests.md#no-suitable-peers-for-placement-10005",
    "A new stream whose max_bytes are more than what is left is refused there (10005, 10047)",
    "Lower max_bytes of streams that do not need them, raise the limit, add servers",
)  # fmt: skip
JOURNAL_LOSSES: Final = FindingKind(
    "JC119", BAD, "Records of the journal were lost", "symptoms/replicas.md#records-of-the-journal-were-lost",
    "Damage was found at the start; groups with other replicas fetch what is missing, those of one replica have "
    "lost it",
    "See the log for which groups. Look for the cause: disk, memory, file system",
)  # fmt: skip
UNASSIGNED: Final = FindingKind(
    "JC120", NOTE, "A server keeps data of streams that are not placed there", "membership/rescue.md",
    "The cluster does not know them: the meta group was founded anew, or the store comes from elsewhere",
    "`jetcluster rescue` shows them. Nothing is deleted by itself",
)  # fmt: skip
API_WAITS: Final = FindingKind(
    "JC121", WARN, "Many requests of the JetStream API wait", "monitoring.md",
    "More come than are answered: clients that ask for infos in a loop, or a slow disk",
    "Find the clients that ask (`jetcluster_api_requests_total` by account)",
)  # fmt: skip
NOT_COMPILED: Final = FindingKind(
    "JC122", WARN, "A server runs without its compiled loops", "mechanisms/compiled-loops.md",
    "Messages cost many times the processor time",
    "Install a wheel for this platform, or a compiler, and install again",
)  # fmt: skip
CERTIFICATE_OVER: Final = FindingKind(
    "JC123", BAD, "A certificate is over", "symptoms/connections.md#a-certificate-is-over",
    "Clients or servers that check it do not connect",
    "Put a new certificate in place and reload (`jetcluster serve --signal reload`)",
)  # fmt: skip
CERTIFICATE_ENDS: Final = FindingKind(
    "JC124", WARN, "A certificate ends soon", "symptoms/connections.md#a-certificate-is-over",
    "Afterwards clients or servers that check it do not connect",
    "Put a new certificate in place and reload (`jetcluster serve --signal reload`)",
)  # fmt: skip
LEAF_DOWN: Final = FindingKind(
    "JC125", BAD, "A link to a hub is down", "symptoms/links.md#a-leaf-link-is-down",
    "Nothing goes between this cluster and the hub for that account; mirrors across it get older",
    "See the log for why; check address, port, credentials and TLS of the remote",
)  # fmt: skip
JOURNAL_DELETED: Final = FindingKind(
    "JC126", BAD, "The journal's folder was deleted under a running server",
    "symptoms/servers.md#the-journal-was-deleted",
    "It was removed, moved or unmounted. The server leads nothing, votes for nothing and acknowledges nothing, as what "
    "it writes now is lost when it ends",
    "See what removed it. Put the folder back where it was only moved or unmounted, else move what is left of the "
    "store away, and restart the server: with an empty store it fetches everything from the others. Streams whose "
    "replicas are all gone come from a backup",
)  # fmt: skip
RELOAD_REFUSED: Final = FindingKind(
    "JC127", WARN, "A server goes on with its old configuration", "symptoms/servers.md#a-reload-is-refused",
    "Its last reload was refused, so its file is not what is in force. It does not start with that file either",
    "Mend what the reason says; `jetcluster serve -c FILE -t` checks the file. Then reload again",
)  # fmt: skip
META_LEADERLESS: Final = FindingKind(
    "JC201", BAD, "The meta group has no leader", "symptoms/cluster.md#the-cluster-has-no-leader",
    "A leader needs a majority of the members. Existing streams go on where they have a majority of their own",
    "Start the absent servers. If a majority is lost for good: rescue of the meta group",
)  # fmt: skip
META_AT_QUORUM: Final = FindingKind(
    "JC202", WARN, "One more absent server and the cluster decides nothing",
    "symptoms/cluster.md#a-server-of-the-cluster-is-absent",
    "Just as many members are there as a majority needs",
    "Start the absent servers; one that never returns: `jetcluster decommission`",
)  # fmt: skip
UNEVEN: Final = FindingKind(
    "JC203", WARN, "One server leads far more streams than the others", "mechanisms/members.md",
    "Leaders take the publishes, so its processor and disk are used most",
    "`nats server cluster step-down` moves the meta leader; `STREAM.LEADER.STEPDOWN` those of streams. Leaders "
    "stay where they are after restarts",
)  # fmt: skip
VERSIONS: Final = FindingKind(
    "JC204", NOTE, "The servers have different versions", "membership/upgrades.md",
    "An upgrade is under way, or one server was left out of it",
    "Upgrade the others, one after the other",
)  # fmt: skip
LEVELS: Final = FindingKind(
    "JC205", NOTE, "Not all servers understand the newest commands", "membership/upgrades.md",
    "What needs the new level is held back until all servers have it",
    "Upgrade the others",
)  # fmt: skip
SYNC_DIFFERS: Final = FindingKind(
    "JC206", WARN, "The servers differ in sync_interval", "health/disks.md",
    "A message is only as safe as at the laxest server of its majority",
    "Use one value everywhere; it can be changed server by server",
)  # fmt: skip
TWO_SERVERS: Final = FindingKind(
    "JC207", NOTE, "The cluster has two servers", "membership/servers.md",
    "Both are needed for a majority, so a loss of either stops it: two are less available than one",
    "Add a third server",
)  # fmt: skip
LINK_MISSING: Final = FindingKind(
    "JC208", BAD, "Two servers have no link to each other", "symptoms/connections.md#a-route-is-refused",
    "Both are linked to others. Streams whose replicas are on both lack a replica, and clients of one do not hear"
    " those of the other",
    "Check the network between them: firewall, name of the route, cluster port",
)  # fmt: skip
RESCUED: Final = FindingKind(
    "JC209", NOTE, "A rescue of the cluster went on without some servers", "membership/rescue-meta.md",
    "Somebody decided that a majority was lost for good",
    "Remove them (`jetcluster decommission`) or have them join anew with empty stores",
)  # fmt: skip
UNANSWERED: Final = FindingKind(
    "JC210", WARN, "A linked server does not tell its state", "membership/upgrades.md",
    "It is of an older version, or too busy to answer",
    "Upgrade it; if it is of this version, look at its log and its processor",
)  # fmt: skip
LEADERLESS: Final = FindingKind(
    "JC301", BAD, "A stream has no leader", "symptoms/cluster.md#a-stream-has-no-leader",
    "A leader needs a majority of the replicas",
    "Start the servers of its replicas. If a majority is lost for good: rescue of the stream",
)  # fmt: skip
LOST: Final = FindingKind(
    "JC324", BAD, "A stream is on no server any more", "symptoms/cluster.md#a-stream-is-on-no-server-any-more",
    "The servers of its replicas were removed, or came back with empty stores",
    "Start the old store again, if there is one. Else delete the stream and restore it from a backup",
)  # fmt: skip
REPLICA_GONE: Final = FindingKind(
    "JC302", WARN, "A replica's server is absent", "symptoms/cluster.md#a-server-of-the-cluster-is-absent",
    "The stream goes on with the others",
    "Start the server; if it never returns, `jetcluster decommission` it, and the stream gets another replica",
)  # fmt: skip
BEHIND: Final = FindingKind(
    "JC303", WARN, "A replica is behind", "symptoms/replicas.md#a-replica-is-behind",
    "Its server is slow, was away, or its link is full",
    "Wait if it just came back; else compare its disk (fsync) and processor with the others'",
)  # fmt: skip
CATCHING_UP: Final = FindingKind(
    "JC304", NOTE, "A replica fetches its state from another", "symptoms/replicas.md#a-replica-is-behind",
    "It is new, was away for long, or was rebuilt",
    "Wait",
)  # fmt: skip
NOT_APPLIED: Final = FindingKind(
    "JC305", WARN, "A replica has not applied what is committed", "symptoms/replicas.md#a-replica-is-behind",
    "It is loaded more than it can take, or waits for the disk",
    "Look at processor and disk of the server",
)  # fmt: skip
STOPPED: Final = FindingKind(
    "JC306", BAD, "A replica has stopped", "symptoms/replicas.md#a-replica-has-stopped",
    "It could not carry out a command that the others could, or the store failed",
    "Restart its server; if it stops again, report it with the log",
)  # fmt: skip
DAMAGED: Final = FindingKind(
    "JC307", BAD, "A replica has damaged data", "symptoms/replicas.md#a-replica-has-damaged-data",
    "A stored record fails its checksum. With other replicas it is repaired by itself",
    "Look at the disk. A stream of one replica: restore it from a backup",
)  # fmt: skip
REJECTED: Final = FindingKind(
    "JC308", WARN, "A replica is out of service and is rebuilt", "symptoms/replicas.md#a-replica-is-out-of-service",
    "Its content differed from the majority's",
    "Wait until it is rebuilt; look for the cause (disk, memory) when it happens again",
)  # fmt: skip
UNDECIDED: Final = FindingKind(
    "JC309", BAD, "A replica differs and no majority agrees",
    "symptoms/replicas.md#replicas-differ-and-no-majority-agrees",
    "Which content is right is not known, so nothing is repaired by itself",
    "Compare the replicas as the page says",
)  # fmt: skip
REFUSING: Final = FindingKind(
    "JC310", BAD, "A replica does not follow its leader", "symptoms/replicas.md#a-replica-does-not-follow-its-leader",
    "The leader's log contradicts what this replica knows to be committed",
    "Read the reason; a replica whose store was mixed up has to be made anew",
)  # fmt: skip
BROKEN: Final = FindingKind(
    "JC311", BAD, "A replica cannot be started", "symptoms/replicas.md#a-replica-cannot-be-started",
    "What is stored of it cannot be read",
    "Look at the log. With other replicas: have it filled anew (docs/runbooks.md, recover a damaged replica)",
)  # fmt: skip
ONE_REPLICA: Final = FindingKind(
    "JC312", NOTE, "A stream has one replica in a cluster", "membership/servers.md",
    "It is away while its server is, and lost with its disk",
    "Set num_replicas to 3, unless that is meant",
)  # fmt: skip
ONE_MACHINE: Final = FindingKind(
    "JC313", WARN, "Replicas of a stream are on one machine", "mechanisms/workers.md",
    "They fail together, so the stream is less safe than its number of replicas says",
    "Move one: tags in its placement, or `jetcluster decommission` of one server and back",
)  # fmt: skip
STREAM_FULL: Final = FindingKind(
    "JC314", WARN, "A stream that refuses when it is full is nearly full",
    "symptoms/requests.md#maximum-messages-exceeded-10077",
    "discard is new",
    "Raise the limit, let consumers acknowledge (work queue, interest), or purge",
)  # fmt: skip
STREAM_ROLLS: Final = FindingKind(
    "JC315", NOTE, "A stream is at its limit and drops its oldest messages",
    "symptoms/messages.md#no-message-found-10037",
    "discard is old: that is how a limit works",
    "Raise the limit if readers need the older messages",
)  # fmt: skip
CONSUMERS_NEAR: Final = FindingKind(
    "JC316", WARN, "A stream has nearly as many consumers as it may", "consumers.md",
    "max_consumers of the stream, or default_max_consumers of the server",
    "Delete consumers that nobody uses, give them an inactive_threshold, or raise the limit",
)  # fmt: skip
UPSTREAM_SILENT: Final = FindingKind(
    "JC317", BAD, "A mirror or source does not hear its upstream",
    "symptoms/links.md#a-mirror-hears-nothing-of-its-upstream",
    "The link to the upstream's cluster is down, the upstream has no leader, or it was deleted",
    "Check the leaf link and the upstream stream",
)  # fmt: skip
UPSTREAM_LAGS: Final = FindingKind(
    "JC318", WARN, "A mirror or source is behind its upstream", "symptoms/links.md#a-mirror-is-behind-its-upstream",
    "More comes than goes over the link, or the stream here is slow or full",
    "Watch whether the lag shrinks; compare rates on both sides",
)  # fmt: skip
QUEUE_UNUSED: Final = FindingKind(
    "JC319", NOTE, "A work queue has messages and no consumer", "consumers.md",
    "Nobody takes them, so they stay until a limit",
    "Create a consumer, or delete the stream",
)  # fmt: skip
NO_INTEREST: Final = FindingKind(
    "JC320", NOTE, "A stream that keeps by interest has no consumer",
    "symptoms/messages.md#a-message-is-acknowledged-and-not-there",
    "What is published is removed at once",
    "Create the consumers before the publishers start",
)  # fmt: skip
REFUSED: Final = FindingKind(
    "JC321", NOTE, "A stream was refused lately", "symptoms/requests.md#no-suitable-peers-for-placement-10005",
    "No servers have the room or the tags for it (10005), the account's limit is reached (10047, 10028), or a server "
    "without a cluster was asked for replicas (10074)",
    "See what each server lacks. Lower max_bytes or num_replicas, change the placement, or add room, servers or tags",
)  # fmt: skip
GUARD_REFUSES: Final = FindingKind(
    "JC322", BAD, "A retention guard refuses publishes", "symptoms/requests.md#maximum-messages-exceeded-10077",
    "Messages wait for the guard's consumer, and have all the bytes or the age that they may have",
    "See why the archive job, or who else acknowledges, does not go on. Raise max_bytes or max_age of the guard, or "
    "take it away",
)  # fmt: skip
GUARD_MISSING: Final = FindingKind(
    "JC323", WARN, "The consumer of a retention guard does not exist", "retention-guard.md",
    "Limits remove nothing until it does",
    "Start the archive job with --guard, or create the consumer; or take the guard away",
)  # fmt: skip
STUCK: Final = FindingKind(
    "JC401", BAD, "A consumer delivers nothing although messages and a reader wait",
    "symptoms/consumers.md#a-consumer-delivers-nothing-to-a-reader-that-waits",
    "This should not happen: it is not paused, waits for no ack, reader, time (rate_limit_bps, replay_policy original) "
    "or priority group",
    "Look at the consumer's info and its pulls. A step-down of the consumer's leader begins its delivery anew. "
    "Report it with the log",
)  # fmt: skip
ACKS_FULL: Final = FindingKind(
    "JC402", WARN, "A consumer waits for acks", "symptoms/consumers.md#a-consumer-waits-for-acks",
    "At max_ack_pending nothing more is delivered",
    "See why its workers do not acknowledge; raise max_ack_pending if they are many",
)  # fmt: skip
PAUSED: Final = FindingKind(
    "JC403", NOTE, "A consumer is paused", "symptoms/consumers.md#a-consumer-is-paused",
    "Somebody set pause_until",
    "Resume it (`nats consumer resume`), or wait",
)  # fmt: skip
REDELIVERED: Final = FindingKind(
    "JC404", WARN, "Every message of a consumer comes again", "symptoms/consumers.md#messages-come-again",
    "The workers fail or take longer than ack_wait, so each message is delivered anew",
    "Look at the workers' log; raise ack_wait or have them send +WPI; set max_deliver so that bad messages end",
)  # fmt: skip
UNASKED: Final = FindingKind(
    "JC405", NOTE, "Messages wait at a consumer and nobody asks for them",
    "symptoms/consumers.md#messages-wait-and-nobody-asks",
    "Its workers are down, or it is not used any more",
    "Start the workers, or delete the consumer: it may keep messages in the stream",
)  # fmt: skip
GIVEN_UP: Final = FindingKind(
    "JC406", WARN, "A consumer gave messages up", "symptoms/consumers.md#a-consumer-gave-messages-up",
    "They reached max_deliver without an ack, and the stream keeps them by interest",
    "Read them (`$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES` names each) and delete them",
)  # fmt: skip
UNBOUND: Final = FindingKind(
    "JC407", NOTE, "Messages wait at a push consumer and nobody has subscribed to its subject", "consumers.md",
    "A push consumer sends while somebody subscribes to deliver_subject, with deliver_group in that queue group, in "
    "the consumer's account",
    "Start the subscriber, see that subject, queue group and account are the consumer's, or delete the consumer: it "
    "may keep messages in the stream",
)  # fmt: skip
UNREAD: Final = FindingKind(
    "JC408", WARN, "A consumer waits for a reader that is there and does not read", "consumers.md",
    "Its reader has 2 MiB (push) or 8 MiB (pull) unread, or does not answer a flow control request",
    "Look at the worker: it hangs, its processor is busy, or its link is slow",
)  # fmt: skip
LETTERS_WAIT: Final = FindingKind(
    "JC409", WARN, "Dead letters wait for the stream that takes them", "symptoms/consumers.md#dead-letters-wait",
    "They are tried again until a stream of the same account and domain confirms them; nothing is lost",
    "See that a stream takes their subject (`dead_letter` of the consumer) and has room",
)  # fmt: skip
OPEN_ROUTES: Final = FindingKind(
    "JC501", WARN, "Anybody in the network may join the cluster", "security/routes.md",
    "trusted_network is set, and routes have neither a password nor TLS",
    "Give routes a password (`cluster { authorization }`) or TLS, or close the port to others",
)  # fmt: skip
NO_USERS: Final = FindingKind(
    "JC502", WARN, "Clients need no login", "security.md",
    "No users are configured, and the client port is not only for this machine",
    "Configure accounts and users, or bind the port to 127.0.0.1",
)  # fmt: skip
NO_TLS: Final = FindingKind(
    "JC503", WARN, "Passwords and messages are not encrypted", "security/tls.md",
    "The client port has users and no TLS, and is not only for this machine",
    "Configure `tls`, or see to it that the network is private",
)  # fmt: skip
CONSOLE_OPEN: Final = FindingKind(
    "JC504", WARN, "The console takes passwords without encryption", "security/other-doors.md",
    "console is on, the monitoring port speaks HTTP and is not only for this machine",
    "Use https_port, or put a proxy with TLS in front",
)  # fmt: skip
TEMPORARY_STORE: Final = FindingKind(
    "JC505", WARN, "Streams are kept in a temporary folder", "configuration.md",
    "store_dir is not set, or is below the folder for temporary files, which a restart of the machine may empty",
    "Set `jetstream { store_dir }` to a folder on a disk of its own",
)  # fmt: skip
SYNC_RELAXED: Final = FindingKind(
    "JC506", NOTE, "Messages are acknowledged before they are on the disk", "configuration.md",
    "sync_interval is set: a power failure of a majority loses acknowledged messages",
    "Leave sync_interval out, unless that is meant",
)  # fmt: skip
INERT: Final = FindingKind(
    "JC507", NOTE, "Keys of the configuration have no effect", "configuration.md",
    "They are nats-server's and this server does without them",
    "Take them out, or see in the table what replaces them",
)  # fmt: skip
NO_SYSTEM_USER: Final = FindingKind(
    "JC508", NOTE, "Nobody can log in to the system account", "security/accounts.md",
    "No user is configured for it, so status, the cluster in the console and decommission are refused",
    "Add a user to the system account",
)  # fmt: skip
ACCOUNT_NEAR: Final = FindingKind(
    "JC509", WARN, "An account has nearly used its limit",
    "symptoms/requests.md#resource-limits-exceeded-for-account-10002",
    "Beyond it publishes (10002) or new streams (10027) are refused",
    "Raise the limit of the account, or lower those of its streams",
)  # fmt: skip
INVALID: Final = FindingKind(
    "JC510", BAD, "The configuration file is not valid", "symptoms/servers.md#a-server-does-not-start",
    "A server does not start with it",
    "Correct what the message says",
)  # fmt: skip
START_WARNING: Final = FindingKind(
    "JC511", NOTE, "A start warns about the configuration", "configuration.md",
    "See the text",
    "See the text",
)  # fmt: skip
ACCOUNT_RESERVED: Final = FindingKind(
    "JC512", WARN, "max_bytes of streams reserve most of an account's limit",
    "symptoms/requests.md#insufficient-storage-resources-available-10047",
    "A new stream, or an update, whose max_bytes times its replicas are more than what is left is refused (10047 for "
    "files, 10028 for memory), however little the streams hold",
    "Lower max_bytes or num_replicas of the streams that are named, delete those not needed, or raise the limit",
)  # fmt: skip
LOW_DESCRIPTORS: Final = FindingKind(
    "JC601", WARN, "The machine allows few file descriptors", "health/descriptors.md",
    "Each client takes one, and the store some hundreds",
    "Raise the limit (`LimitNOFILE=`, `ulimit -n`) to 65,536 or more",
)  # fmt: skip
LOW_BACKLOG: Final = FindingKind(
    "JC602", WARN, "The kernel queues few new connections", "limits.md",
    "net.core.somaxconn bounds the queue, so many clients that come at once are refused",
    "`sysctl -w net.core.somaxconn=4096`",
)  # fmt: skip
UNSYNCHRONIZED: Final = FindingKind(
    "JC603", WARN, "The machine's clock is not synchronized", "symptoms/servers.md#the-clock-is-wrong",
    "The kernel says that nothing keeps it right",
    "Run chrony or ntpd",
)  # fmt: skip
CLOCK_UNKNOWN: Final = FindingKind(
    "JC604", NOTE, "It is not known whether the clock is synchronized", "health/time.md",
    "Neither the kernel nor timedatectl tells, as in many containers",
    "Look on the host",
)  # fmt: skip
SLOW_DISK: Final = FindingKind(
    "JC605", WARN, "The disk is slow to make writes durable", "health/disks.md",
    "Every acknowledged message waits for that on a majority",
    "Use a disk with a write cache that survives a power failure; share it with nobody",
)  # fmt: skip
STORE_UNWRITABLE: Final = FindingKind(
    "JC606", BAD, "Nothing can be written to the store's folder", "symptoms/servers.md#a-server-does-not-start",
    "Owner or mode of the folder, or a volume that is mounted read-only",
    "Correct that: the server's user needs to write there",
)  # fmt: skip
LITTLE_SPACE: Final = FindingKind(
    "JC607", WARN, "Little space is left for the store", "symptoms/servers.md#the-disk-is-full",
    "When it is full, publishes are refused",
    "Free space, or put the store on another disk",
)  # fmt: skip
LITTLE_MEMORY: Final = FindingKind(
    "JC608", WARN, "The memory limit is low", "limits.md",
    "An empty server takes about 60 MiB, and each stream, subject and consumer some more",
    "Raise the limit of the container or unit",
)  # fmt: skip
PORT_TAKEN: Final = FindingKind(
    "JC609", NOTE, "A port of the configuration is taken", "configuration.md",
    "If it is this server, which runs, that is right; else it will not start",
    "Stop the other program, or choose another port",
)  # fmt: skip
ROUTE_UNRESOLVED: Final = FindingKind(
    "JC610", BAD, "The name of a route has no address", "symptoms/servers.md#a-server-does-not-start",
    "DNS does not know it from here",
    "Correct the name, or the resolver of this machine",
)  # fmt: skip
ROUTE_UNREACHABLE: Final = FindingKind(
    "JC611", WARN, "Nothing answers at the address of a route", "symptoms/connections.md#a-route-is-refused",
    "That server is down, or a firewall is between",
    "Start it; open the cluster port between the servers",
)  # fmt: skip

KINDS: Final[tuple[FindingKind, ...]] = (
    ABSENT, JOURNAL_HANGS, DISK_FULL, STORE_FAILS, DATA_DAMAGED, DESCRIPTORS_OUT, CLOCK_OFF, LOOP_STANDS, MEMORY_OUT,
    REMOVED, META_REFUSED, LAME_DUCK, CLOCK_SKEW, MEMORY_NEAR, DESCRIPTORS_NEAR, DISK_NEAR, STORAGE_NEAR,
    RESERVED_NEAR, JOURNAL_LOSSES, UNASSIGNED, API_WAITS, NOT_COMPILED, CERTIFICATE_OVER, CERTIFICATE_ENDS, LEAF_DOWN,
    JOURNAL_DELETED, RELOAD_REFUSED,
    META_LEADERLESS, META_AT_QUORUM, UNEVEN, VERSIONS, LEVELS, SYNC_DIFFERS, TWO_SERVERS, LINK_MISSING, RESCUED,
    UNANSWERED, LEADERLESS, REPLICA_GONE, BEHIND, CATCHING_UP, NOT_APPLIED, STOPPED, DAMAGED, REJECTED, UNDECIDED,
    REFUSING, BROKEN, ONE_REPLICA, ONE_MACHINE, STREAM_FULL, STREAM_ROLLS, CONSUMERS_NEAR, UPSTREAM_SILENT,
    UPSTREAM_LAGS, QUEUE_UNUSED, NO_INTEREST, REFUSED, GUARD_REFUSES, GUARD_MISSING, LOST,
    STUCK, ACKS_FULL, PAUSED, REDELIVERED, UNASKED, GIVEN_UP, UNBOUND, UNREAD, LETTERS_WAIT, OPEN_ROUTES,
    NO_USERS, NO_TLS, CONSOLE_OPEN, TEMPORARY_STORE, SYNC_RELAXED, INERT, NO_SYSTEM_USER, ACCOUNT_NEAR, INVALID,
    START_WARNING, ACCOUNT_RESERVED,
    LOW_DESCRIPTORS, LOW_BACKLOG, UNSYNCHRONIZED, CLOCK_UNKNOWN, SLOW_DISK, STORE_UNWRITABLE,
    LITTLE_SPACE, LITTLE_MEMORY, PORT_TAKEN, ROUTE_UNRESOLVED, ROUTE_UNREACHABLE,
)  # fmt: skip
"""All kinds, by code."""
