//! Bytes that go through one connection and come back, each of them checked.

use std::io::{BufRead, Error, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// Time without a byte after which the connection counts as broken.
const SILENCE: Duration = Duration::from_secs(20);
const PIECE: usize = 16 << 10;

/// Returns the byte at a position, such that no piece of the stream looks like another.
fn byte(at: u64) -> u8 {
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0]
}

/// Sends back what comes, until it ends.
pub fn serve(reader: &mut impl BufRead, stream: &mut TcpStream) {
    // An error ends the connection: the client counts the bytes.
    let _ = std::io::copy(reader, stream);
    let _ = stream.shutdown(Shutdown::Write);
}

/// Sends so many bytes while it reads them back.
pub fn run(target: &str, count: u64) -> Result<()> {
    let mut stream = TcpStream::connect(target)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    write!(stream, "GET /mirror HTTP/1.1\r\nHost: {target}\r\n\r\n")?;
    let mut sender = stream.try_clone()?;
    let sent = std::thread::spawn(move || send(&mut sender, count));
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        for &found in &buffer[..length] {
            if found != byte(at) {
                return Err(Error::other(format!("byte {at} is {found} and not {}", byte(at))));
            }
            at += 1;
        }
    }
    sent.join().map_err(|_| Error::other("sending panicked"))??;
    if at != count {
        return Err(Error::other(format!("{at} of {count} bytes came back")));
    }
    println!("{count} bytes came back");
    Ok(())
}

fn send(stream: &mut TcpStream, count: u64) -> Result<()> {
    let mut at = 0;
    while at < count {
        let end = count.min(at + PIECE as u64);
        let piece: Vec<u8> = (at..end).map(byte).collect();
        stream.write_all(&piece)?;
        at = end;
    }
    stream.shutdown(Shutdown::Write)
}
