//! Redis as a test talks to it: one line, one answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// Runs one command, written as people type it; answers the first line, or the text that it announces.
pub(crate) fn redis(port: u16, command: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("Redis is there");
    stream.write_all(format!("{command}\r\n").as_bytes()).expect("it listens");
    let mut answers = BufReader::new(stream);
    let mut line = String::new();
    answers.read_line(&mut line).expect("it answers");
    assert!(!line.starts_with('-'), "{command}: {line}");
    match line.strip_prefix('$').and_then(|length| length.trim().parse().ok()) {
        Some(length) => {
            let mut text = vec![0; length];
            answers.read_exact(&mut text).expect("it goes on");
            super::text(&text)
        }
        None => line.trim().trim_start_matches(['+', ':', '*']).to_owned(),
    }
}
