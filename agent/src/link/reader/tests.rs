use std::os::fd::AsFd as _;

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, socketpair, sockopt::set_socket_send_buffer_size_force,
};
use strait_contract::record::{Activity, Decision, Kind};

use super::*;
use crate::{instance::Instance, log::Options};

/// A reader, its peer with room for thousands of packets each way, and where its log is.
fn rig() -> (Reader, std::os::fd::OwnedFd, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut instance = Instance::standard("t".parse().unwrap());
    instance.state_dir = dir.path().to_owned();
    let log = Log::open(Options { group: None, ..Options::for_instance(&instance) }).unwrap();
    let (own, peer) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    for end in [&own, &peer] {
        set_socket_send_buffer_size_force(end, 64 << 20).unwrap();
    }
    let reader = Reader {
        socket: Socket::new(own),
        log,
        news: mpsc::channel(1).0,
        calls: Calls::default(),
        host_records: VecDeque::new(),
        begun_ms: log::now_ms(),
        group: Vec::new(),
        numbers: Vec::new(),
        steps: Vec::new(),
    };
    (reader, peer, dir)
}

fn send(peer: &std::os::fd::OwnedFd, batch: u64, records: Vec<Record>) {
    let packet = seqpacket::encode(&ToAgent::Records { batch, records }).unwrap();
    seqpacket::send(peer.as_fd(), &packet, &[]).unwrap();
}

/// What was answered so far.
fn answers(peer: &std::os::fd::OwnedFd) -> Vec<Option<Unrecorded>> {
    let mut buffer = vec![0; MAX_PACKET];
    let mut answers = Vec::new();
    loop {
        match seqpacket::receive(peer.as_fd(), &mut buffer) {
            Ok((ToGateway::Recorded { refused, .. }, _)) => answers.push(refused),
            Ok((other, _)) => panic!("{other:?}"),
            Err(error) if error.would_block() => return answers,
            Err(error) => panic!("{error}"),
        }
    }
}

fn lookup(rules: usize) -> Record {
    let activity = Activity {
        rules: vec![String::new(); rules],
        ..Activity::new(Source::Gateway, Kind::Dns, Decision::Deny)
    };
    log::record(None, Body::Activity(Box::new(activity)))
}

/// A batch weighs something even if nothing is in it, else a flood of them would be gathered for ever.
#[tokio::test]
async fn a_flood_of_empty_batches_is_answered_group_by_group() {
    let (mut reader, peer, _dir) = rig();
    for batch in 0..5000 {
        send(&peer, batch, Vec::new());
    }
    let mut buffer = vec![0; MAX_PACKET];
    reader.turn(&mut buffer).unwrap();
    let first = answers(&peer).len();
    assert!((1..=GROUP).contains(&first), "{first} batches were held at once");
    let mut all = first;
    while all < 5000 {
        reader.turn(&mut buffer).unwrap();
        all += answers(&peer).len();
    }
}

#[tokio::test]
async fn a_record_that_breaks_a_bound_is_refused_and_not_held() {
    let (mut reader, peer, _dir) = rig();
    send(&peer, 0, vec![lookup(1)]);
    send(&peer, 1, vec![lookup(100_000)]);
    send(&peer, 2, vec![lookup(1)]);
    let mut buffer = vec![0; MAX_PACKET];
    let held =
        reader.socket.receive_waiting(&mut buffer).map_err(Over::from).and_then(|got| reader.take(got));
    held.unwrap();
    let got = reader.socket.receive_waiting(&mut buffer).unwrap();
    reader.take(got).unwrap();
    assert!(reader.group.is_empty(), "what came before it is written, it isn't kept");
    reader.turn(&mut buffer).unwrap();
    assert_eq!(answers(&peer), [None, Some(Unrecorded::Malformed), None]);
}
