// A member of a consumer with order per key: one client that says which messages it got and what it answers.
//
//	suite consumer URL STREAM CONSUMER N                          makes both, by the `metadata` of the configuration
//	suite member URL STREAM CONSUMER consume|messages|fetch       until its standard input ends
//
// It prints "got SEQUENCE SUBJECT DELIVERIES", and "ack SEQUENCE" or "nak SEQUENCE" before it says that to the server.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	inHand    = 40 // messages that a member asks for at a time
	refusedOf = 13 // of so many messages it refuses one, the first time it comes
)

func connected(url string) (*nats.Conn, jetstream.JetStream) {
	nc, err := nats.Connect(url)
	check(err, "connect")
	js, err := jetstream.New(nc)
	check(err, "jetstream")
	return nc, js
}

func keyedConsumer(url, name, consumer, most string) {
	nc, js := connected(url)
	defer nc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, Replicas: 3})
	check(err, "create stream")
	for i := 0; i < 2; i++ { // the second time it is there
		c, err := s.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: consumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 5 * time.Second,
			Metadata: map[string]string{"jetcluster.max_ack_pending_per_subject": most},
		})
		check(err, "create consumer")
		got := c.CachedInfo().Config.Metadata["jetcluster.max_ack_pending_per_subject"]
		expect(got == most, "metadata", got)
	}
}

type member struct {
	working sync.WaitGroup
}

// Takes a message into a worker of its own, so several are in hand at a time.
func (m *member) take(msg jetstream.Msg) {
	meta, err := msg.Metadata()
	check(err, "metadata")
	seq := meta.Sequence.Stream
	fmt.Printf("got %d %s %d\n", seq, msg.Subject(), meta.NumDelivered)
	m.working.Add(1)
	go func() {
		defer m.working.Done()
		time.Sleep(time.Duration(seq*7919%5) * time.Millisecond)
		if meta.NumDelivered == 1 && seq%refusedOf == 0 {
			fmt.Printf("nak %d\n", seq)
			check(msg.Nak(), "nak")
			return
		}
		fmt.Printf("ack %d\n", seq)
		check(msg.Ack(), "ack")
	}()
}

func (m *member) consume(c jetstream.Consumer, stop <-chan struct{}) {
	cc, err := c.Consume(m.take, jetstream.PullMaxMessages(inHand))
	check(err, "consume")
	<-stop
	cc.Drain()
	<-cc.Closed()
}

func (m *member) messages(c jetstream.Consumer, stop <-chan struct{}) {
	it, err := c.Messages(jetstream.PullMaxMessages(inHand))
	check(err, "messages")
	go func() {
		<-stop
		it.Drain()
	}()
	for {
		msg, err := it.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			return
		}
		check(err, "next")
		m.take(msg)
	}
}

func (m *member) fetch(c jetstream.Consumer, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		batch, err := c.Fetch(inHand, jetstream.FetchMaxWait(time.Second))
		check(err, "fetch")
		for msg := range batch.Messages() {
			m.take(msg)
		}
		check(batch.Error(), "batch")
	}
}

func beMember(url, name, consumer, way string) {
	nc, js := connected(url)
	defer nc.Close()
	c, err := js.Consumer(context.Background(), name, consumer)
	check(err, "consumer")
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	m := &member{}
	map[string]func(jetstream.Consumer, <-chan struct{}){
		"consume": m.consume, "messages": m.messages, "fetch": m.fetch,
	}[way](c, stop)
	m.working.Wait()
	check(nc.Flush(), "flush")
	fmt.Println("ended")
}
