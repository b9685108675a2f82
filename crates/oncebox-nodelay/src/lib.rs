//! Sends what is written at once, on connections whose driver does not ask for it.
//!
//! A statement that does not fit into the send buffer goes out in two writes. The end of it then waits until the server
//! has acknowledged what came before (Nagle's algorithm), and the server takes 40 ms for that because it waits for the
//! end of the statement. `TCP_NODELAY` is the remedy. sqlx 0.9.0 does not set it (versions before it did, the one after
//! it will: issue 4335 there) and does not let anybody at its sockets. So they are looked for among the open files of
//! this process.
//!
//! Call it where a pool has made a connection:
//!
//! ```
//! # fn options(port: u16) -> sqlx::postgres::PgPoolOptions {
//! sqlx::postgres::PgPoolOptions::new().after_connect(move |_, _| {
//!     oncebox_nodelay::no_delay(port);
//!     Box::pin(async { Ok(()) })
//! })
//! # }
//! ```

/// Sets `TCP_NODELAY` on every connection that this process has to this port, of whatever host.
///
/// Looks at every open file of the process, a few microseconds each: for new connections, not for each statement. Does
/// nothing on systems that do not list a process's open files as Linux and macOS do.
pub fn no_delay(port: u16) {
    #[cfg(unix)]
    unix::connections(port, |socket| {
        // Where it is refused, things are as they were.
        let _ = socket.set_tcp_nodelay(true);
    });
    #[cfg(not(unix))]
    let _ = port;
}

/// How many connections to this port do delay; for tests.
#[doc(hidden)]
#[cfg(unix)]
pub fn delaying(port: u16) -> usize {
    let mut delaying = 0;
    unix::connections(port, |socket| {
        delaying += usize::from(socket.tcp_nodelay().is_ok_and(|is_set| !is_set));
    });
    delaying
}

#[cfg(unix)]
mod unix {
    use std::fs::read_dir;
    use std::os::fd::{BorrowedFd, RawFd};

    use socket2::SockRef;

    /// The connections of this process to this port.
    pub(crate) fn connections(port: u16, mut each: impl FnMut(&SockRef<'_>)) {
        let Ok(files) = read_dir("/proc/self/fd").or_else(|_| read_dir("/dev/fd")) else { return };
        let numbers: Vec<RawFd> =
            files.flatten().filter_map(|file| file.file_name().to_str()?.parse().ok()).collect();
        for number in numbers.into_iter().filter(|number| *number >= 0) {
            // SAFETY: The file should stay open while it is borrowed, and nobody promises that. But all that is done is
            // to ask for its peer and its delay, and to switch that off; nothing is read, written or closed. Of a file
            // that was closed meanwhile the calls fail, and so they do where its number is another file's by then that
            // is no connection. One more connection that does not delay is no harm.
            #[allow(unsafe_code)]
            let file = unsafe { BorrowedFd::borrow_raw(number) };
            let socket = SockRef::from(&file);
            let peer = socket.peer_addr().ok().and_then(|peer| peer.as_socket());
            if peer.is_some_and(|peer| peer.port() == port) {
                each(&socket);
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn connections_to_the_port_no_longer_delay_and_others_stay_as_they_are() {
        let [meant, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let connect = |to: &TcpListener| TcpStream::connect(to.local_addr().unwrap()).unwrap();
        let (first, second, foreign) = (connect(&meant), connect(&meant), connect(&other));
        // Files that are no connection, and a connection that is none of TCP.
        let file = std::fs::File::open("/dev/null").unwrap();
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        datagrams.connect(meant.local_addr().unwrap()).unwrap();
        let port = meant.local_addr().unwrap().port();
        assert_eq!(delaying(port), 2);
        no_delay(port);
        assert_eq!(delaying(port), 0);
        assert!(first.nodelay().unwrap() && second.nodelay().unwrap());
        assert!(!foreign.nodelay().unwrap());
        drop((file, datagrams));
    }
}
