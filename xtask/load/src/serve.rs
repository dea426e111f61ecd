//! The origin of bulk transfers: a thread per connection that sends zeros.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    thread,
};

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create, sendfile};

pub(crate) fn run(listen: &str) -> Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| format!("`{listen}` can't be bound"))?;
    for stream in listener.incoming() {
        let stream = stream?;
        // A client that goes away in the middle is its own business.
        thread::spawn(move || answer(stream));
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while let Some(line) = lines.next() {
        let line = line?;
        if let Some(length) = line.strip_prefix("bulk:") {
            zeros(&mut stream, length.parse()?)?;
        } else if let Some(path) = line.strip_prefix("GET /") {
            let length: u64 = path.split(' ').next().context("no path")?.parse()?;
            for header in lines.by_ref() {
                if header?.is_empty() {
                    break;
                }
            }
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")?;
            zeros(&mut stream, length)?;
        }
    }
    Ok(())
}

/// Sends zeros from the page cache, as a web server sends a file.
fn zeros(stream: &mut TcpStream, mut length: u64) -> Result<()> {
    const BLOCK: u64 = 64 << 20;
    let file = memfd_create("zeros", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, BLOCK)?;
    while length > 0 {
        let mut at = 0;
        let end = length.min(BLOCK);
        while at < end {
            let left = usize::try_from(end - at)?;
            let sent = sendfile(&*stream, &file, Some(&mut at), left)?;
            length -= u64::try_from(sent)?;
        }
    }
    Ok(())
}
