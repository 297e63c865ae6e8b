// A client suite in JavaScript: what stock nats.js does with consumers, buckets and objects, each step checked.
//   node suite.mjs nats://127.0.0.1:4222 REPLICAS
//   node --experimental-websocket suite.mjs ws://127.0.0.1:8080 REPLICAS   (Node 20; from 22 on without the flag)
import assert from "node:assert/strict";
import { connect, nanos, wsconnect } from "@nats-io/transport-node";
import { AckPolicy, DeliverPolicy, jetstream, jetstreamManager, RetentionPolicy } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";
import { Objm } from "@nats-io/obj";

const [, , servers, count] = process.argv;
const num_replicas = Number(count);
const dial = servers.startsWith("ws://") ? wsconnect : connect;
const nc = await dial({ servers });
const js = jetstream(nc);
const jsm = await jetstreamManager(nc);

async function stream(name, messages, config = {}) {
  await jsm.streams.add({ name, subjects: [`${name}.>`], num_replicas, ...config });
  await Promise.all(Array.from({ length: messages }, (_, n) => js.publish(`${name}.${n % 5}`, String(n))));
}

const steps = {
  async tracing() {
    const reports = [];
    const sub = nc.subscribe("jt.reports", { max: 2, callback: (_, msg) => reports.push(msg.json()) });
    let got = 0;
    nc.subscribe("jt.a", { callback: () => got++ });
    await nc.flush();
    nc.publish("jt.a", "x", { traceDestination: "jt.reports" });
    nc.publish("jt.a", "x", { traceDestination: "jt.reports", traceOnly: true });
    await sub.closed;
    assert.equal(got, 1);
    for (const { events } of reports) assert.deepEqual(events.map((event) => event.type), ["in", "eg"]);
  },
  async fetch() {
    await stream("JF", 500);
    await jsm.consumers.add("JF", { durable_name: "d", ack_policy: AckPolicy.Explicit });
    const consumer = await js.consumers.get("JF", "d");
    const seen = new Set();
    while (seen.size < 500) {
      for await (const msg of await consumer.fetch({ max_messages: 100, expires: 5000 })) {
        assert.equal(msg.info.streamSequence, seen.size + 1);
        assert.equal(await msg.ackAck(), true);
        seen.add(msg.string());
      }
    }
    const info = await consumer.info();
    assert.deepEqual([info.num_pending, info.num_ack_pending, info.ack_floor.stream_seq], [0, 0, 500]);
    assert.equal(await consumer.next({ expires: 1000 }), null);
  },
  async consume() {
    await stream("JC", 1000);
    await jsm.consumers.add("JC", { durable_name: "d", ack_policy: AckPolicy.Explicit });
    const consumer = await js.consumers.get("JC", "d");
    let at = 0;
    for await (const msg of await consumer.consume({ max_messages: 50 })) {
      assert.equal(msg.string(), String(at));
      msg.ack();
      if (++at === 1000) break;
    }
  },
  async ordered() {
    await stream("JO", 1000);
    const consumer = await js.consumers.get("JO", { filter_subjects: ["JO.1", "JO.3"] });
    let last = 0, seen = 0;
    for await (const msg of await consumer.consume()) {
      assert.ok(msg.seq > last);
      last = msg.seq;
      if (++seen === 400) break;
    }
  },
  async push() {
    await stream("JP", 300);
    await jsm.consumers.add("JP", {
      durable_name: "d", deliver_subject: "to.jp", ack_policy: AckPolicy.Explicit, deliver_policy: DeliverPolicy.All,
      idle_heartbeat: nanos(1000), flow_control: true,
    });
    const consumer = await js.consumers.getPushConsumer("JP", "d");
    let at = 0;
    for await (const msg of await consumer.consume()) {
      assert.equal(msg.string(), String(at));
      msg.ack();
      if (++at === 300) break;
    }
  },
  async redelivery() {
    await stream("JR", 3);
    await jsm.consumers.add("JR", {
      durable_name: "d", ack_policy: AckPolicy.Explicit, ack_wait: nanos(400), max_deliver: 3, backoff: [nanos(200), nanos(300)],
    });
    const consumer = await js.consumers.get("JR", "d");
    const first = await consumer.next();
    first.nak();
    assert.equal((await consumer.next({ expires: 5000 })).info.deliveryCount, 2);
    const second = await consumer.next();
    second.term("enough");
    const third = await consumer.next();
    third.working();
    assert.equal(await third.ackAck(), true);
  },
  async workQueue() {
    await stream("JW", 50, { retention: RetentionPolicy.Workqueue });
    await jsm.consumers.add("JW", { durable_name: "d", ack_policy: AckPolicy.Explicit });
    const consumer = await js.consumers.get("JW", "d");
    for await (const msg of await consumer.fetch({ max_messages: 50 })) await msg.ackAck();
    assert.equal((await jsm.streams.info("JW")).state.messages, 0);
  },
  async keyValue() {
    const kv = await new Kvm(js).create("jb", { history: 5, replicas: num_replicas });
    const first = await kv.put("a", "1");
    await kv.update("a", "2", first);
    await assert.rejects(kv.update("a", "x", first));
    await assert.rejects(kv.create("a", "x"));
    assert.equal((await kv.get("a")).string(), "2");
    await kv.delete("a");
    assert.equal((await kv.get("a")).operation, "DEL");
    await kv.create("a", "3");
    let entries = 0;
    for await (const entry of await kv.history({ key: "a" })) entries += entry.key === "a" ? 1 : 0;
    assert.equal(entries, 4);
    for (let n = 0; n < 20; n++) await kv.put(`k.${n}`, "v");
    const keys = [];
    for await (const key of await kv.keys()) keys.push(key);
    assert.equal(keys.length, 21);
    const watch = await kv.watch({ key: "k.3" });
    let values = 0;
    for await (const entry of watch) {
      if (++values === 1) await kv.put("k.3", "new");
      else {
        assert.equal(entry.string(), "new");
        break;
      }
    }
    await kv.purge("k.3");
    assert.equal((await kv.get("k.3")).operation, "PURGE");
    await kv.destroy();
  },
  async objects() {
    const store = await new Objm(js).create("jo", { replicas: num_replicas });
    const data = crypto.getRandomValues(new Uint8Array(65536));
    const big = Buffer.concat(Array.from({ length: 40 }, () => data));
    const info = await store.putBlob({ name: "big" }, big);
    assert.equal(info.size, big.length);
    assert.ok(Buffer.from(await store.getBlob("big")).equals(big));
    assert.equal((await store.list()).length, 1);
    await store.delete("big");
    assert.equal(await store.getBlob("big"), null);
  },
  async manage() {
    await stream("JM", 1);
    for (let n = 0; n < 5; n++) await jsm.consumers.add("JM", { durable_name: `c${n}`, ack_policy: AckPolicy.Explicit });
    const names = [];
    for await (const info of jsm.consumers.list("JM")) names.push(info.name);
    assert.deepEqual(names, ["c0", "c1", "c2", "c3", "c4"]);
    assert.equal((await jsm.consumers.pause("JM", "c1", new Date(Date.now() + 60000))).paused, true);
    assert.equal((await jsm.consumers.resume("JM", "c1")).paused, false);
    assert.equal((await jsm.consumers.update("JM", "c2", { description: "new" })).config.description, "new");
    assert.equal(await jsm.consumers.delete("JM", "c0"), true);
    await assert.rejects(jsm.consumers.info("JM", "c0"));
  },
};

for (const [name, run] of Object.entries(steps)) {
  const start = Date.now();
  let timer;
  const late = new Promise((_, no) => (timer = setTimeout(() => no(new Error("30 s")), 30000)));
  try {
    await Promise.race([run(), late]);
  } catch (error) {
    console.log(`FAIL ${name}: ${error.stack}`);
    process.exit(1);
  }
  clearTimeout(timer);
  console.log(`ok ${name} (${Date.now() - start} ms)`);
}
await nc.close();
