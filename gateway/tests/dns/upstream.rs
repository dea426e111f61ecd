//! A small name server that counts what it is asked.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use hickory_resolver::proto::{
    op::{Message, MessageType, OpCode},
    rr::{Name, RData, Record, RecordType, rdata},
    serialize::binary::{BinDecodable, BinEncodable},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, UdpSocket},
};

pub(crate) struct Upstream {
    pub(crate) addr: SocketAddr,
    asked: Arc<AtomicUsize>,
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        let (udp, tcp) = super::rig::listeners();
        let addr = udp.local_addr().unwrap();
        udp.set_nonblocking(true).unwrap();
        tcp.set_nonblocking(true).unwrap();
        let (udp, tcp) = (UdpSocket::from_std(udp).unwrap(), TcpListener::from_std(tcp).unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        tokio::spawn(serve_udp(udp, Arc::clone(&asked)));
        tokio::spawn(serve_tcp(tcp));
        Self { addr, asked }
    }

    /// How many queries came over UDP.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

async fn serve_udp(socket: UdpSocket, asked: Arc<AtomicUsize>) {
    let mut buffer = [0; 4096];
    loop {
        let (len, peer) = socket.recv_from(&mut buffer).await.unwrap();
        asked.fetch_add(1, Ordering::Relaxed);
        let mut answer = answer(&Message::from_bytes(&buffer[..len]).unwrap());
        let mut packet = answer.to_bytes().unwrap();
        if packet.len() > 1232 {
            answer.answers.clear();
            answer.metadata.truncation = true;
            packet = answer.to_bytes().unwrap();
        }
        socket.send_to(&packet, peer).await.unwrap();
    }
}

async fn serve_tcp(listener: TcpListener) {
    loop {
        let (mut socket, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            while let Ok(len) = socket.read_u16().await {
                let mut packet = vec![0; usize::from(len)];
                socket.read_exact(&mut packet).await.unwrap();
                let packet = answer(&Message::from_bytes(&packet).unwrap()).to_bytes().unwrap();
                socket.write_u16(u16::try_from(packet.len()).unwrap()).await.unwrap();
                socket.write_all(&packet).await.unwrap();
            }
        });
    }
}

fn answer(query: &Message) -> Message {
    let mut answer = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
    answer.metadata.recursion_available = true;
    let question = &query.queries[0];
    answer.add_query(question.clone());
    let asked = question.name().to_ascii();
    answer.answers = match (asked.trim_end_matches('.'), question.query_type()) {
        ("ok.test.example" | "short.permitted.example" | "far.example", RecordType::TXT) => {
            vec![txt(&asked, "hello")]
        }
        ("long.permitted.example", RecordType::TXT) => {
            (0..20).map(|n| txt(&asked, &format!("{n:0200}"))).collect()
        }
        ("chain.permitted.example", RecordType::TXT) => {
            vec![cname(&asked, "far.example."), txt("far.example.", "hello")]
        }
        ("self.permitted.example", _) => vec![cname(&asked, "self.permitted.example.")],
        ("a.permitted.example", _) => vec![cname(&asked, "b.permitted.example.")],
        ("b.permitted.example", _) => vec![cname(&asked, "a.permitted.example.")],
        _ => Vec::new(),
    };
    answer
}

fn txt(name: &str, text: &str) -> Record {
    let data = RData::TXT(rdata::TXT::new(vec![text.to_owned()]));
    Record::from_rdata(Name::from_ascii(name).unwrap(), 60, data)
}

fn cname(name: &str, to: &str) -> Record {
    let data = RData::CNAME(rdata::CNAME(Name::from_ascii(to).unwrap()));
    Record::from_rdata(Name::from_ascii(name).unwrap(), 60, data)
}
