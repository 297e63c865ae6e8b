// A client suite in Go: what stock nats.go does with streams, consumers, buckets and objects, each step checked.
//
//	go run . nats://127.0.0.1:4222 REPLICAS
//
// With other words it is a member of a consumer with order per key (member.go).
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var replicas int

func check(err error, what string) {
	if err != nil {
		panic(fmt.Sprintf("%s: %v", what, err))
	}
}

func expect(ok bool, what string, values ...any) {
	if !ok {
		panic(fmt.Sprintf("%s: %v", what, values))
	}
}

func main() {
	if len(os.Args) == 6 {
		map[string]func(url, name, consumer, how string){
			"consumer": keyedConsumer, "member": beMember,
		}[os.Args[1]](os.Args[2], os.Args[3], os.Args[4], os.Args[5])
		return
	}
	url := os.Args[1]
	replicas, _ = strconv.Atoi(os.Args[2])
	nc, err := nats.Connect(url)
	check(err, "connect")
	defer nc.Close()
	js, err := jetstream.New(nc)
	check(err, "jetstream")
	steps := []struct {
		name string
		run  func(context.Context, *nats.Conn, jetstream.JetStream)
	}{
		{"fetch", fetch}, {"consume", consume}, {"messages", messages}, {"ordered", ordered}, {"redelivery", redelivery},
		{"work queue", workQueue}, {"legacy push", legacyPush}, {"pinned", pinned}, {"key-value", keyValue}, {"watch", watch}, {"objects", objects},
		{"pause", pause}, {"list", list},
	}
	for _, step := range steps {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		start := time.Now()
		func() {
			defer func() {
				if r := recover(); r != nil {
					fmt.Printf("FAIL %s: %v\n", step.name, r)
					os.Exit(1)
				}
			}()
			step.run(ctx, nc, js)
		}()
		cancel()
		fmt.Printf("ok %s (%d ms)\n", step.name, time.Since(start).Milliseconds())
	}
}

func stream(ctx context.Context, js jetstream.JetStream, name string, count int, retention jetstream.RetentionPolicy) jetstream.Stream {
	s, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{name + ".>"}, Replicas: replicas, Retention: retention,
	})
	check(err, "create stream")
	for i := 0; i < count; i++ {
		_, err := js.PublishAsync(fmt.Sprintf("%s.%d", name, i%5), []byte(strconv.Itoa(i)))
		check(err, "publish")
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		panic("publishes not acked")
	}
	return s
}

func fetch(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) {
	s := stream(ctx, js, "F", 1000, jetstream.LimitsPolicy)
	c, err := s.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy})
	check(err, "create")
	next := 0
	for next < 1000 {
		batch, err := c.Fetch(100, jetstream.FetchMaxWait(5*time.Second))
		check(err, "fetch")
		for msg := range batch.Messages() {
			expect(string(msg.Data()) == strconv.Itoa(next), "order", string(msg.Data()), next)
			meta, err := msg.Metadata()
			check(err, "metadata")
			expect(meta.Sequence.Stream == uint64(next+1) && meta.NumPending == uint64(999-next), "metadata", *meta, next)
			check(msg.DoubleAck(ctx), "ack")
			next++
		}
		check(batch.Error(), "batch")
	}
	batch, err := c.FetchNoWait(10)
	check(err, "fetch no wait")
	for range batch.Messages() {
		panic("more than there is")
	}
	info, err := c.Info(ctx)
	check(err, "info")
	expect(info.AckFloor.Stream == 1000 && info.NumAckPending == 0 && info.NumPending == 0, "info", *info)
	small, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: "F.3"})
	check(err, "filtered")
	msgs, err := small.FetchBytes(600, jetstream.FetchMaxWait(2*time.Second))
	check(err, "fetch bytes")
	got := 0
	for msg := range msgs.Messages() {
		expect(msg.Subject() == "F.3", "filter", msg.Subject())
		got++
	}
	expect(got > 2 && got < 12, "bytes", got)
}

func consume(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) {
	s := stream(ctx, js, "C", 2000, jetstream.LimitsPolicy)
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy})
	check(err, "create")
	done := make(chan int, 4000)
	cc, err := c.Consume(func(msg jetstream.Msg) {
		check(msg.Ack(), "ack")
		n, _ := strconv.Atoi(string(msg.Data()))
		done <- n
	}, jetstream.PullMaxMessages(100))
	check(err, "consume")
	for i := 0; i < 2000; i++ {
		select {
		case n := <-done:
			expect(n == i, "order", n, i)
		case <-ctx.Done():
			panic(fmt.Sprintf("only %d came", i))
		}
	}
	_, err = js.Publish(ctx, "C.9", []byte("2000"))
	check(err, "publish")
	select {
	case n := <-done:
		expect(n == 2000, "live", n)
	case <-ctx.Done():
		panic("nothing live")
	}
	cc.Stop()
}

func messages(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) {
	s := stream(ctx, js, "M", 500, jetstream.LimitsPolicy)
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckAllPolicy})
	check(err, "create")
	it, err := c.Messages(jetstream.PullMaxMessages(50))
	check(err, "messages")
	for i := 0; i < 500; i++ {
		msg, err := it.Next()
		check(err, "next")
		expect(string(msg.Data()) == strconv.Itoa(i), "order", string(msg.Data()), i)
		if i%50 == 49 {
			check(msg.DoubleAck(ctx), "ack all")
		}
	}
	it.Stop()
	info, err := c.Info(ctx)
	check(err, "info")
	expect(info.AckFloor.Stream == 500 && info.NumAckPending == 0, "info", *info)
}

func ordered(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) {
	s := stream(ctx, js, "O", 3000, jetstream.LimitsPolicy)
	c, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{"O.1", "O.2"}})
	check(err, "create")
	it, err := c.Messages()
	check(err, "messages")
	last := uint64(0)
	for i := 0; i < 1200; i++ {
		msg, err := it.Next()
		check(err, "next")
		meta, _ := msg.Metadata()
		expect(meta.Sequence.Stream > last, "order", meta.Sequence.Stream, last)
		last = meta.Sequence.Stream
	}
	it.Stop()
	from, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: 2990})
	check(err, "create from")
	batch, err := from.Fetch(11, jetstream.FetchMaxWait(2*time.Second))
	check(err, "fetch")
	n := 0
	for msg := range batch.Messages() {
		meta, _ := msg.Metadata()
		expect(meta.Sequence.Stream == uint64(2990+n), "from", meta.Sequence.Stream)
		n++
	}
	expect(n == 11, "from", n)
}

func redelivery(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) {
	s := stream(ctx, js, "R", 4, jetstream.LimitsPolicy)
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 500 * time.Millisecond, MaxDeliver: 3})
	check(err, "create")
	msg := func() jetstream.Msg {
		m, err := c.Next(jetstream.FetchMaxWait(5 * time.Second))
		check(err, "next")
		return m
	}
	a, b, d, e := msg(), msg(), msg(), msg()
	check(a.Nak(), "nak")
	again := msg()
	meta, _ := again.Metadata()
	expect(string(again.Data()) == "0" && meta.NumDelivered == 2, "nak", *meta)
	check(again.Term(), "term")
	start := time.Now()
	check(b.NakWithDelay(300*time.Millisecond), "nak with delay")
	check(d.Ack(), "ack")
	check(e.InProgress(), "in progress")
	later := msg()
	expect(string(later.Data()) == "1" && time.Since(start) > 250*time.Millisecond, "delay", string(later.Data()), time.Since(start))
	check(later.Ack(), "ack")
	timeout := msg()
	expect(string(timeout.Data()) == "3", "ack wait", string(timeout.Data()))
	check(timeout.DoubleAck(ctx), "ack")
	info, err := c.Info(ctx)
	check(err, "info")
	expect(info.NumAckPending == 0 && info.AckFloor.Stream == 4, "info", *info)
}

func workQueue(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) {
	s := stream(ctx, js, "W", 100, jetstream.WorkQueuePolicy)
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy})
	check(err, "create")
	_, err = s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "e", AckPolicy: jetstream.AckExplicitPolicy})
	expect(err != nil, "second consumer of a work queue")
	batch, err := c.Fetch(100)
	check(err, "fetch")
	for msg := range batch.Messages() {
		check(msg.DoubleAck(ctx), "ack")
	}
	info, err := s.Info(ctx)
	check(err, "info")
	expect(info.State.Msgs == 0, "left", info.State.Msgs)
}

func legacyPush(ctx context.Context, nc *nats.Conn, js jetstream.JetStream) {
	stream(ctx, js, "L", 300, jetstream.LimitsPolicy)
	old, err := nc.JetStream()
	check(err, "legacy")
	sub, err := old.SubscribeSync("L.>", nats.Durable("push"), nats.AckExplicit())
	check(err, "subscribe")
	for i := 0; i < 300; i++ {
		msg, err := sub.NextMsgWithContext(ctx)
		check(err, "next")
		expect(string(msg.Data) == strconv.Itoa(i), "order", string(msg.Data), i)
		check(msg.AckSync(), "ack")
	}
	check(sub.Unsubscribe(), "unsubscribe")
	one, err := old.SubscribeSync("L.>", nats.OrderedConsumer())
	check(err, "ordered")
	for i := 0; i < 300; i++ {
		_, err := one.NextMsgWithContext(ctx)
		check(err, "ordered next")
	}
	check(one.Unsubscribe(), "unsubscribe")
	got := make(chan struct{}, 1000)
	for i := 0; i < 2; i++ {
		_, err := old.QueueSubscribe("L.>", "workers", func(m *nats.Msg) { _ = m.Ack(); got <- struct{}{} }, nats.ManualAck(), nats.AckExplicit())
		check(err, "queue")
	}
	for i := 0; i < 300; i++ {
		select {
		case <-got:
		case <-ctx.Done():
			panic(fmt.Sprintf("queue: %d", i))
		}
	}
	select {
	case <-got:
		panic("queue: twice")
	case <-time.After(200 * time.Millisecond):
	}
}

func pinned(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) {
	s := stream(ctx, js, "P", 50, jetstream.LimitsPolicy)
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "d", AckPolicy: jetstream.AckExplicitPolicy, PriorityPolicy: jetstream.PriorityPolicyPinned,
		PriorityGroups: []string{"g"}, PinnedTTL: 5 * time.Second,
	})
	check(err, "create")
	batch, err := c.Fetch(10, jetstream.FetchPriorityGroup("g"), jetstream.FetchMaxWait(2*time.Second))
	check(err, "fetch")
	n := 0
	for msg := range batch.Messages() {
		expect(msg.Headers().Get("Nats-Pin-Id") != "", "pin", msg.Headers())
		check(msg.Ack(), "ack")
		n++
	}
	expect(n == 10, "pinned", n)
	check(s.UnpinConsumer(ctx, "d", "g"), "unpin")
}

func keyValue(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) {
	kv, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "B", History: 5, Replicas: replicas})
	check(err, "create")
	first, err := kv.Put(ctx, "a", []byte("1"))
	check(err, "put")
	_, err = kv.Update(ctx, "a", []byte("2"), first)
	check(err, "update")
	_, err = kv.Update(ctx, "a", []byte("x"), first)
	expect(errors.Is(err, jetstream.ErrKeyExists) || err != nil, "stale update")
	_, err = kv.Create(ctx, "a", []byte("x"))
	expect(errors.Is(err, jetstream.ErrKeyExists), "create of what exists", err)
	e, err := kv.Get(ctx, "a")
	check(err, "get")
	expect(string(e.Value()) == "2", "value", string(e.Value()))
	check(kv.Delete(ctx, "a"), "delete")
	_, err = kv.Get(ctx, "a")
	expect(errors.Is(err, jetstream.ErrKeyNotFound), "deleted", err)
	_, err = kv.Create(ctx, "a", []byte("3"))
	check(err, "create again")
	history, err := kv.History(ctx, "a")
	check(err, "history")
	expect(len(history) == 4, "history", len(history))
	for i := 0; i < 100; i++ {
		_, err = kv.Put(ctx, fmt.Sprintf("k.%d", i), []byte("v"))
		check(err, "put")
	}
	keys, err := kv.Keys(ctx)
	check(err, "keys")
	expect(len(keys) == 101, "keys", len(keys))
	check(kv.Purge(ctx, "k.5"), "purge")
	keys, err = kv.Keys(ctx)
	check(err, "keys")
	expect(len(keys) == 100, "keys after purge", len(keys))
	check(kv.PurgeDeletes(ctx, jetstream.DeleteMarkersOlderThan(-1)), "purge deletes")
	status, err := kv.Status(ctx)
	check(err, "status")
	expect(status.Values() > 100, "values", status.Values())
	check(js.DeleteKeyValue(ctx, "B"), "delete bucket")
}

func watch(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) {
	kv, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "WT", Replicas: replicas})
	check(err, "create")
	for i := 0; i < 10; i++ {
		_, err = kv.Put(ctx, fmt.Sprintf("k%d", i), []byte("v"))
		check(err, "put")
	}
	w, err := kv.WatchAll(ctx)
	check(err, "watch")
	n := 0
	for e := range w.Updates() {
		if e == nil {
			break
		}
		n++
	}
	expect(n == 10, "initial", n)
	_, err = kv.Put(ctx, "k3", []byte("new"))
	check(err, "put")
	select {
	case e := <-w.Updates():
		expect(e.Key() == "k3" && string(e.Value()) == "new", "update", e.Key())
	case <-ctx.Done():
		panic("no update")
	}
	check(w.Stop(), "stop")
	only, err := kv.Watch(ctx, "k3", jetstream.UpdatesOnly())
	check(err, "updates only")
	check(kv.Delete(ctx, "k3"), "delete")
	select {
	case e := <-only.Updates():
		expect(e.Operation() == jetstream.KeyValueDelete, "operation", e.Operation())
	case <-ctx.Done():
		panic("no delete")
	}
}

func objects(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) {
	store, err := js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "OB", Replicas: replicas})
	check(err, "create")
	data := make([]byte, 3<<20)
	_, _ = rand.Read(data)
	info, err := store.PutBytes(ctx, "big file", data)
	check(err, "put")
	expect(info.Size == uint64(len(data)) && info.Chunks == 24, "info", *info)
	back, err := store.GetBytes(ctx, "big file")
	check(err, "get")
	expect(bytes.Equal(back, data), "content")
	_, err = store.PutString(ctx, "small", "hello")
	check(err, "put small")
	all, err := store.List(ctx)
	check(err, "list")
	expect(len(all) == 2, "list", len(all))
	check(store.Delete(ctx, "big file"), "delete")
	_, err = store.GetBytes(ctx, "big file")
	expect(errors.Is(err, jetstream.ErrObjectNotFound), "deleted", err)
	_, err = store.AddLink(ctx, "link", must(store.GetInfo(ctx, "small")))
	check(err, "link")
	text, err := store.GetString(ctx, "link")
	check(err, "get link")
	expect(text == "hello", "link", text)
	check(store.Seal(ctx), "seal")
}

func must[T any](value T, err error) T {
	check(err, "must")
	return value
}

func pause(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) {
	s := stream(ctx, js, "Z", 5, jetstream.LimitsPolicy)
	_, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy})
	check(err, "create")
	paused, err := s.PauseConsumer(ctx, "d", time.Now().Add(time.Minute))
	check(err, "pause")
	expect(paused.Paused, "paused")
	c, err := s.Consumer(ctx, "d")
	check(err, "consumer")
	_, err = c.Next(jetstream.FetchMaxWait(300 * time.Millisecond))
	expect(err != nil, "delivered while paused")
	resumed, err := s.ResumeConsumer(ctx, "d")
	check(err, "resume")
	expect(!resumed.Paused, "resumed")
	for _, err = c.Next(jetstream.FetchMaxWait(time.Second)); err != nil; { // nats-server answers before the leader knows
		expect(ctx.Err() == nil, "next after resume", err)
		_, err = c.Next(jetstream.FetchMaxWait(time.Second))
	}
}

func list(ctx context.Context, _ *nats.Conn, js jetstream.JetStream) {
	s := stream(ctx, js, "LI", 1, jetstream.LimitsPolicy)
	for i := 0; i < 300; i++ {
		_, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: fmt.Sprintf("c%03d", i), AckPolicy: jetstream.AckExplicitPolicy})
		check(err, "create")
	}
	n := 0
	lister := s.ListConsumers(ctx)
	for info := range lister.Info() {
		expect(info.Name == fmt.Sprintf("c%03d", n), "order", info.Name, n)
		n++
	}
	check(lister.Err(), "list")
	expect(n == 300, "list", n)
	names := 0
	namer := s.ConsumerNames(ctx)
	for range namer.Name() {
		names++
	}
	expect(names == 300, "names", names)
	check(s.DeleteConsumer(ctx, "c007"), "delete")
	_, err := s.Consumer(ctx, "c007")
	expect(errors.Is(err, jetstream.ErrConsumerNotFound), "deleted", err)
}
