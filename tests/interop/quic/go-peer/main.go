// A quic-go client for the tests of the broker's QUIC listeners.
//
// It dials the broker and bridges: each TCP connection to "streams" becomes a client-opened bidirectional stream, with half-close
// in both directions, and each TCP connection to "accepts" is given the next unidirectional stream that the server opened.
// Bidirectional streams that the server opens are Fujin's pings and are answered as the deployed Go client does.
//
// What happens is printed as one JSON object a line. Commands are read from stdin: "migrate" moves the connection to a new UDP
// port, "close CODE REASON" ends it; so does the end of stdin.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/logging"
)

const (
	readBytes         = 512 // as the deployed client reads
	ping              = 11
	acceptedMax       = 100
	dialTimeout       = 30 * time.Second
	migrationTimeout  = 20 * time.Second
	streamOpenTimeout = 20 * time.Second
)

var (
	server          = flag.String("server", "", "host:port of the broker")
	alpn            = flag.String("alpn", "fujin", "application protocols to offer, separated by commas; empty for none")
	cidBytes        = flag.Int("connection-id-bytes", 0, "length of our connection ids; 0 dials with quic.DialAddr, as deployed clients do")
	versions        = flag.String("versions", "", "versions to try, as in 2,1")
	curves          = flag.String("curves", "", "key exchange groups to offer: x25519, mlkem768, p256, p384, p521")
	early           = flag.Bool("early", false, "dial with 0-RTT")
	streamWindow    = flag.Uint64("stream-window", 0, "receive window of a stream, initial and largest")
	connWindow      = flag.Uint64("connection-window", 0, "receive window of the connection, initial and largest")
	packetBytes     = flag.Uint("packet-bytes", 0, "initial packet size")
	discoverMTU     = flag.Bool("discover-mtu", true, "path MTU discovery")
	idleTimeout     = flag.Duration("idle-timeout", 0, "idle time-out")
	keepAlivePeriod = flag.Duration("keep-alive", 0, "keep-alive period")
)

var groups = map[string]tls.CurveID{
	"x25519": tls.X25519, "mlkem768": tls.X25519MLKEM768, "p256": tls.CurveP256, "p384": tls.CurveP384, "p521": tls.CurveP521,
}

type fields map[string]any

var printing sync.Mutex

func report(event string, more fields) {
	line := fields{"event": event}
	for name, value := range more {
		line[name] = value
	}
	printing.Lock()
	defer printing.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		os.Exit(2)
	}
}

func reason(err error) fields {
	var transport *quic.TransportError
	var application *quic.ApplicationError
	var idle *quic.IdleTimeoutError
	var reset *quic.StatelessResetError
	switch {
	case errors.As(err, &transport):
		return fields{"kind": "transport", "code": uint64(transport.ErrorCode), "remote": transport.Remote, "reason": transport.ErrorMessage}
	case errors.As(err, &application):
		return fields{"kind": "application", "code": uint64(application.ErrorCode), "remote": application.Remote, "reason": application.ErrorMessage}
	case errors.As(err, &idle):
		return fields{"kind": "idle_timeout"}
	case errors.As(err, &reset):
		return fields{"kind": "stateless_reset"}
	}
	return fields{"kind": "other", "reason": err.Error()}
}

// tracer reports what the transport does, and counts datagrams' worth of packets for the final report.
type tracer struct {
	mutex       sync.Mutex
	initials    int
	largestSent int64
	largestRead int64
}

func (t *tracer) sent(size logging.ByteCount) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.largestSent = max(t.largestSent, int64(size))
}

func (t *tracer) totals() fields {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return fields{"initials": t.initials, "largest_sent": t.largestSent, "largest_received": t.largestRead}
}

func (t *tracer) callbacks() *logging.ConnectionTracer {
	return &logging.ConnectionTracer{
		StartedConnection: func(_, _ net.Addr, source, destination logging.ConnectionID) {
			report("started", fields{"source_cid_bytes": source.Len(), "destination_cid_bytes": destination.Len()})
		},
		ReceivedVersionNegotiationPacket: func(_, _ logging.ArbitraryLenConnectionID, offered []logging.Version) {
			report("version_negotiation", fields{"offered": offered})
		},
		ReceivedRetry: func(header *logging.Header) { report("retry", fields{"token_bytes": len(header.Token)}) },
		SentLongHeaderPacket: func(header *logging.ExtendedHeader, size logging.ByteCount, _ logging.ECN, _ *logging.AckFrame, _ []logging.Frame) {
			t.sent(size)
			if logging.PacketTypeFromHeader(&header.Header) == logging.PacketTypeInitial {
				t.mutex.Lock()
				defer t.mutex.Unlock()
				t.initials++
			}
		},
		SentShortHeaderPacket: func(_ *logging.ShortHeader, size logging.ByteCount, _ logging.ECN, _ *logging.AckFrame, _ []logging.Frame) {
			t.sent(size)
		},
		ReceivedShortHeaderPacket: func(_ *logging.ShortHeader, size logging.ByteCount, _ logging.ECN, _ []logging.Frame) {
			t.mutex.Lock()
			defer t.mutex.Unlock()
			t.largestRead = max(t.largestRead, int64(size))
		},
		UpdatedKey: func(phase logging.KeyPhase, remote bool) {
			report("key_updated", fields{"phase": phase, "remote": remote})
		},
		ECNStateUpdated: func(state logging.ECNState, _ logging.ECNStateTrigger) {
			names := map[logging.ECNState]string{
				logging.ECNStateTesting: "testing", logging.ECNStateUnknown: "unknown",
				logging.ECNStateFailed: "failed", logging.ECNStateCapable: "capable",
			}
			report("ecn", fields{"state": names[state]})
		},
		UpdatedMTU: func(bytes logging.ByteCount, done bool) { report("mtu", fields{"bytes": bytes, "done": done}) },
	}
}

func config(trace *tracer) *quic.Config {
	conf := &quic.Config{
		InitialStreamReceiveWindow: *streamWindow, MaxStreamReceiveWindow: *streamWindow,
		InitialConnectionReceiveWindow: *connWindow, MaxConnectionReceiveWindow: *connWindow,
		InitialPacketSize: uint16(*packetBytes), DisablePathMTUDiscovery: !*discoverMTU,
		MaxIdleTimeout: *idleTimeout, KeepAlivePeriod: *keepAlivePeriod,
		Tracer: func(context.Context, logging.Perspective, quic.ConnectionID) *logging.ConnectionTracer {
			return trace.callbacks()
		},
	}
	for _, each := range split(*versions) {
		conf.Versions = append(conf.Versions, map[string]quic.Version{"1": quic.Version1, "2": quic.Version2}[each])
	}
	return conf
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

func dial(ctx context.Context, conf *quic.Config) (quic.Connection, error) {
	secure := &tls.Config{NextProtos: split(*alpn), InsecureSkipVerify: true, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	for _, each := range split(*curves) {
		secure.CurvePreferences = append(secure.CurvePreferences, groups[each])
	}
	if *early {
		return quic.DialAddrEarly(ctx, *server, secure, conf)
	}
	if *cidBytes == 0 {
		return quic.DialAddr(ctx, *server, secure, conf)
	}
	transport, err := newTransport()
	if err != nil {
		return nil, err
	}
	remote, err := net.ResolveUDPAddr("udp", *server)
	if err != nil {
		return nil, err
	}
	return transport.Dial(ctx, remote, secure, conf)
}

func newTransport() (*quic.Transport, error) {
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	return &quic.Transport{Conn: socket, ConnectionIDLength: *cidBytes}, nil
}

func migrate(conn quic.Connection) error {
	transport, err := newTransport()
	if err != nil {
		return err
	}
	path, err := conn.AddPath(transport)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(conn.Context(), migrationTimeout)
	defer cancel()
	if err := path.Probe(ctx); err != nil {
		return err
	}
	return path.Switch()
}

func answerPings(conn quic.Connection) {
	for {
		stream, err := conn.AcceptStream(conn.Context())
		if err != nil {
			return
		}
		buffer := make([]byte, readBytes)
		count, err := stream.Read(buffer)
		answered := count == 1 && buffer[0] == ping && errors.Is(err, io.EOF)
		if answered {
			_, _ = stream.Write([]byte{ping})
		}
		_ = stream.Close()
		report("ping", fields{"answered": answered})
	}
}

func acceptStreams(conn quic.Connection, accepted chan<- quic.ReceiveStream) {
	for {
		stream, err := conn.AcceptUniStream(conn.Context())
		if err != nil {
			return
		}
		accepted <- stream
	}
}

// abort ends a TCP connection with a reset, which stands for a stream that was reset or lost.
func abort(plain *net.TCPConn, err error) {
	report("stream_failed", reason(err))
	_ = plain.SetLinger(0)
	_ = plain.Close()
}

func bridge(conn quic.Connection, plain *net.TCPConn) {
	ctx, cancel := context.WithTimeout(conn.Context(), streamOpenTimeout)
	defer cancel()
	stream, err := conn.OpenStreamSync(ctx)
	if err != nil {
		abort(plain, err)
		return
	}
	go func() {
		if _, err := io.Copy(stream, plain); err == nil {
			_ = stream.Close()
		}
	}()
	down(stream, plain)
}

func down(stream io.Reader, plain *net.TCPConn) {
	if _, err := io.Copy(plain, stream); err != nil {
		abort(plain, err)
		return
	}
	_ = plain.CloseWrite()
}

func listen(serve func(*net.TCPConn)) string {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		report("failed", reason(err))
		os.Exit(1)
	}
	go func() {
		for {
			plain, err := listener.AcceptTCP()
			if err != nil {
				return
			}
			go serve(plain)
		}
	}()
	return listener.Addr().String()
}

func obey(conn quic.Connection) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "migrate":
			if err := migrate(conn); err != nil {
				report("migration_failed", reason(err))
			} else {
				report("migrated", nil)
			}
		case "close":
			var code uint64
			number, text, _ := strings.Cut(rest, " ")
			if _, err := fmt.Sscan(number, &code); err != nil {
				report("bad_command", reason(err))
				continue
			}
			_ = conn.CloseWithError(quic.ApplicationErrorCode(code), text)
		default:
			report("bad_command", fields{"verb": verb})
		}
	}
	_ = conn.CloseWithError(0, "")
}

func main() {
	flag.Parse()
	trace := &tracer{}
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	conn, err := dial(ctx, config(trace))
	if err != nil {
		report("failed", reason(err))
		os.Exit(1)
	}
	accepted := make(chan quic.ReceiveStream, acceptedMax)
	streams := listen(func(plain *net.TCPConn) { bridge(conn, plain) })
	accepts := listen(func(plain *net.TCPConn) { down(<-accepted, plain) })
	go answerPings(conn)
	go acceptStreams(conn, accepted)
	state := conn.ConnectionState()
	report("connected", fields{
		"version": uint32(state.Version), "alpn": state.TLS.NegotiatedProtocol, "used_0rtt": state.Used0RTT, "resumed": state.TLS.DidResume,
		"group": state.TLS.CurveID.String(), "streams": streams, "accepts": accepts,
	})
	go obey(conn)
	<-conn.Context().Done()
	closed := reason(context.Cause(conn.Context()))
	for name, value := range trace.totals() {
		closed[name] = value
	}
	report("closed", closed)
}
