//! The other ends: a gateway that tells each caller its flow, and an internet that answers everyone and reports
//! every packet it sees from a run.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use strait_contract::flow::Flow;

use crate::probe;

pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 203, 0, 1);

/// Listens as the gateway does, and on a port that it doesn't offer to runs.
pub(crate) fn gateway() -> ! {
    for port in [80, 53, 15001, 22] {
        let listener = TcpListener::bind((GATEWAY, port)).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || tell_flow(stream));
            }
        });
    }
    let dns = UdpSocket::bind((GATEWAY, 53)).unwrap();
    println!("ready");
    let mut buffer = [0; 2048];
    loop {
        if let Ok((len, from)) = dns.recv_from(&mut buffer) {
            println!("datagram {from}");
            let _ = dns.send_to(&buffer[..len], from);
        }
    }
}

/// Answers with the flow; then echoes until the end.
fn tell_flow(mut stream: TcpStream) {
    let text = match probe::flow_of(&stream) {
        Some(flow) => line(&flow),
        None => "noflow\n".to_owned(),
    };
    let _ = stream.write_all(text.as_bytes());
    let mut buffer = [0; 4096];
    while let Ok(len) = stream.read(&mut buffer)
        && len > 0
        && stream.write_all(&buffer[..len]).is_ok()
    {}
}

fn line(flow: &Flow) -> String {
    format!(
        "flow run={} dst={}:{} tgid={} cookie={}\n",
        flow.run, flow.addr, flow.port, flow.tgid, flow.cookie
    )
}

/// Answers on a few ports, and prints `seen` for every IPv4 packet whose source is a run's or that isn't an
/// answer to us.
pub(crate) fn internet() -> ! {
    for port in [443, 80, 22] {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(b"internet\n");
            }
        });
    }
    for port in [443, 53, 9999] {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..len], from);
            }
        });
    }
    let sniffer = probe::sniffer();
    println!("ready");
    loop {
        match probe::sniff(&sniffer) {
            Some(what) => println!("seen {what}"),
            None => thread::sleep(Duration::from_millis(5)),
        }
    }
}
