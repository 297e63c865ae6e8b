export { createInbox, credsAuthenticator, headers, nkeyAuthenticator, nkeys, wsconnect } from "@nats-io/nats-core";
export { Kvm } from "@nats-io/kv";
export { Objm } from "@nats-io/obj";
