//! Keep-alive of TCP connections: the system notices a peer that is gone, also while nothing is sent.

use std::{io, time::Duration};

use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl};
use tokio::net::TcpStream;

/// Firewalls and load balancers forget connections that are idle for minutes. Checks prevent it, or tell of it early.
const IDLE: Duration = Duration::from_secs(30);

const INTERVAL: Duration = Duration::from_secs(10);

/// The system's own limit is about 15 minutes, in which it checks no peer.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

pub(super) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, IDLE)?;
    set_tcp_keepintvl(stream, INTERVAL)?;
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(
        stream,
        u32::try_from(UNACKNOWLEDGED.as_millis()).unwrap_or(u32::MAX),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt::{socket_keepalive, tcp_keepidle, tcp_keepintvl};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_system_checks_idle_connections() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let stream = TcpStream::connect(address).await.expect("it listens");
        keep_alive(&stream).expect("it is a TCP socket");
        assert_eq!(socket_keepalive(&stream), Ok(true));
        assert_eq!((tcp_keepidle(&stream), tcp_keepintvl(&stream)), (Ok(IDLE), Ok(INTERVAL)));
    }
}
