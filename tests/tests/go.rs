//! A client in Go on structures that nobody here wrote: pojntfx/go-nbd's.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use sojourn_tests::tool::{attempt, executable, shell, skip};
use sojourn_tests::{Home, content, require};
use std::process::Command;

/// For both steps: a module that one tool chain fetched may not be one that another builds.
const GO: [(&str, &str); 2] = [("CGO_ENABLED", "0"), ("GOTOOLCHAIN", "local")];

/// Does what `Connect` of the module does, which itself wants a kernel's device: no flags, `GO` without
/// questions, then requests. (Its `List` takes the descriptions that a server may send for names.)
const PROGRAM: &str = r#"
package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/pojntfx/go-nbd/pkg/protocol"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func request(conn net.Conn, kind uint16, offset uint64, data []byte) {
	length := uint32(len(data))
	header := protocol.TransmissionRequestHeader{
		RequestMagic: protocol.TRANSMISSION_MAGIC_REQUEST,
		Type:         kind,
		Handle:       offset,
		Offset:       offset,
		Length:       length,
	}
	check(binary.Write(conn, binary.BigEndian, header))
	if kind == protocol.TRANSMISSION_TYPE_REQUEST_WRITE {
		_, err := conn.Write(data)
		check(err)
	}
	var reply protocol.TransmissionReplyHeader
	check(binary.Read(conn, binary.BigEndian, &reply))
	if reply.ReplyMagic != protocol.TRANSMISSION_MAGIC_REPLY || reply.Error != 0 || reply.Handle != offset {
		panic(fmt.Sprint(reply))
	}
	if kind == protocol.TRANSMISSION_TYPE_REQUEST_READ {
		_, err := io.ReadFull(conn, data)
		check(err)
	}
}

func main() {
	conn, err := net.Dial("unix", os.Args[1])
	check(err)
	var greeting protocol.NegotiationNewstyleHeader
	check(binary.Read(conn, binary.BigEndian, &greeting))
	// As its client does: no flags at all.
	check(binary.Write(conn, binary.BigEndian, uint32(0)))
	name := []byte("d")
	check(binary.Write(conn, binary.BigEndian, protocol.NegotiationOptionHeader{
		OptionMagic: protocol.NEGOTIATION_MAGIC_OPTION,
		ID:          protocol.NEGOTIATION_ID_OPTION_GO,
		Length:      uint32(4 + len(name) + 2),
	}))
	check(binary.Write(conn, binary.BigEndian, uint32(len(name))))
	check(binary.Write(conn, binary.BigEndian, name))
	check(binary.Write(conn, binary.BigEndian, uint16(0)))
	for {
		var reply protocol.NegotiationReplyHeader
		check(binary.Read(conn, binary.BigEndian, &reply))
		if reply.Type == protocol.NEGOTIATION_TYPE_REPLY_ACK {
			break
		}
		if reply.Type != protocol.NEGOTIATION_TYPE_REPLY_INFO {
			panic(fmt.Sprint(reply))
		}
		_, err := io.CopyN(io.Discard, conn, int64(reply.Length))
		check(err)
	}
	data := bytes.Repeat([]byte("go"), 50000)
	request(conn, protocol.TRANSMISSION_TYPE_REQUEST_WRITE, 12345, data)
	back := make([]byte, len(data))
	request(conn, protocol.TRANSMISSION_TYPE_REQUEST_READ, 12345, back)
	if !bytes.Equal(data, back) {
		panic("other bytes come back")
	}
	fmt.Println("done")
}
"#;

const TEST: &str = "a_go_client_negotiates_writes_and_reads";
/// Set where there is a second Go in `PATH`.
const SECOND: &str = "SOJOURN_TEST_SECOND_GO";

/// In place of `go`: one of another version, as far as it says.
const OTHER_GO: &str = r#"#!/bin/sh
[ "$*" != "env GOVERSION" ] || { echo another; exit; }
PATH=${PATH#*"${0%/*}:"} exec go "$@"
"#;

/// Runs this test again, with a Go of another version first in the caller's `PATH`.
fn again_with_a_second_go() {
    let home = Home::new();
    let go = home.path("go");
    executable(&go, OTHER_GO);
    let path = format!("{}:{}", home.dir().display(), std::env::var("PATH").unwrap());
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", TEST, "--nocapture"]).env("PATH", path).env(SECOND, "");
    assert!(test.status().unwrap().success(), "with a second Go in PATH");
}

#[test]
fn a_go_client_negotiates_writes_and_reads() {
    require!("go");
    if std::env::var_os(SECOND).is_none() {
        return again_with_a_second_go();
    }
    let home = Home::new();
    let dir = home.path("go");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("main.go"), PROGRAM).unwrap();
    let fetch = "go mod init client
                 go mod edit -require=github.com/pojntfx/go-nbd@v0.3.2
                 go mod tidy
                 go env GOVERSION";
    let fetched = match attempt(&dir, &GO, fetch) {
        Ok(out) => out,
        Err(why) => return skip(TEST, &format!("the module cannot be fetched: {why}")),
    };
    let built = shell(&dir, &GO, "go build -o client . && go env GOVERSION");
    assert_eq!(fetched, built, "one Go fetched, another one built");
    home.import("golden:1", &content::image(3, 16));
    home.disk("d", "golden");
    let server = home.serve();
    let socket = server.socket().to_string_lossy().into_owned();
    let out = shell(&dir, &[("S", &socket)], "./client \"$S\" < /dev/null");
    assert_eq!(out, "done\n");
    server.stop();
}
