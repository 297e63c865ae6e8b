export { createInbox, credsAuthenticator, headers, nkeyAuthenticator, nkeys, nuid, wsconnect } from "@nats-io/nats-core";
export { Kvm } from "@nats-io/kv";
export { sha256 } from "js-sha256";
