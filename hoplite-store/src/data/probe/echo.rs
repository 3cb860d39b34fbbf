//! Echoes over UDP, which measure round trips. The socket answers one peer at a time.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hoplite_core::topology::probe::Probes;
use hoplite_core::topology::probe::echo::{Action, EchoRequester, EchoResponder, Echoes};
use hoplite_proto::data::probe::{PACKET_BYTES, decode_packet, encode_packet};
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep, sleep_until};

/// Pause after a socket error, so that a permanent error does not spin.
const ERROR_PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Echo {
    socket: UdpSocket,
    origin: Instant,
    answerer: Option<EchoResponder>,
}

impl Echo {
    pub(super) async fn bind(address: IpAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(SocketAddr::new(address, 0)).await?;
        Ok(Self { socket, origin: Instant::now(), answerer: None })
    }

    pub(super) fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    /// Answers only requests from `asker` with `nonce` from now on; `None` ignores all.
    pub(super) fn arm(&mut self, nonce: u64, asker: Option<SocketAddr>) {
        self.answerer = asker.map(|asker| EchoResponder::new(nonce, asker));
    }

    pub(super) async fn answer(&mut self) {
        loop {
            self.receive(None).await;
        }
    }

    /// Measures round trips to `peer`, and answers its requests. `None` if no reply came. Cancel
    /// safe, but loses the measurements.
    pub(super) async fn exchange_echoes(
        &mut self,
        peer: SocketAddr,
        nonce: u64,
        probes: Probes,
    ) -> Option<Echoes> {
        let mut asker = EchoRequester::new(self.now_ns(), nonce, probes);
        loop {
            match asker.next_action(self.now_ns()) {
                Action::Done => return asker.echoes(),
                Action::Send(packet) => {
                    if self.socket.send_to(&encode_packet(&packet), peer).await.is_err() {
                        sleep(ERROR_PAUSE).await;
                    }
                }
                Action::Wait { until_ns } => {
                    let until = self.origin + Duration::from_nanos(until_ns);
                    tokio::select! {
                        biased;
                        () = self.receive(Some((&mut asker, peer))) => {}
                        () = sleep_until(until) => {}
                    }
                }
            }
        }
    }

    async fn receive(&mut self, asker: Option<(&mut EchoRequester, SocketAddr)>) {
        let mut bytes = [0; PACKET_BYTES + 1];
        let Ok((length, from)) = self.socket.recv_from(&mut bytes).await else {
            return sleep(ERROR_PAUSE).await;
        };
        let now_ns = self.now_ns();
        let Some(packet) = decode_packet(&bytes[..length]) else { return };
        if let Some((asker, peer)) = asker
            && from == peer
        {
            asker.received(now_ns, &packet);
        }
        if let Some(reply) =
            self.answerer.as_mut().and_then(|answerer| answerer.reply(now_ns, from, &packet))
        {
            // Drops a reply that would block, so that no peer can make this store wait.
            let _ = self.socket.try_send_to(&encode_packet(&reply), from);
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    async fn pair() -> (Echo, Echo, SocketAddr, SocketAddr) {
        let (one, other) =
            (Echo::bind(LOOPBACK).await.unwrap(), Echo::bind(LOOPBACK).await.unwrap());
        let at = |echo: &Echo| SocketAddr::new(LOOPBACK, echo.port().unwrap());
        let (one_at, other_at) = (at(&one), at(&other));
        (one, other, one_at, other_at)
    }

    #[tokio::test]
    async fn echoes_are_answered() {
        let (mut asking, mut answering, asker, answerer) = pair().await;
        answering.arm(7, Some(asker));
        let echoes = tokio::select! {
            () = answering.answer() => unreachable!("it answers for ever"),
            echoes = asking.exchange_echoes(answerer, 7, Probes::Count(40)) => echoes.unwrap(),
        };
        assert!(echoes.count == 40 && echoes.lost < 40, "{echoes:?}");
        assert!(echoes.forth_ns > 0 && echoes.back_ns > 0, "{echoes:?}");
    }

    #[tokio::test]
    async fn garbage_and_forged_requests_get_no_reply() {
        let (stranger, mut answering, asker, answerer) = pair().await;
        answering.arm(7, Some(asker));
        let forger = UdpSocket::bind((LOOPBACK, 0)).await.unwrap();
        let mut probe = EchoRequester::new(0, 7, Probes::Auto);
        let Action::Send(packet) = probe.next_action(0) else { panic!("nothing to send") };
        let request = encode_packet(&packet);
        let replies = async {
            forger.send_to(&request, answerer).await.unwrap();
            let mut other = request;
            other[8] ^= 1;
            for bytes in [
                &other[..],
                &request[..31],
                &[request, request].concat(),
                &[0; 1000],
                &[],
                &request,
            ] {
                stranger.socket.send_to(bytes, answerer).await.unwrap();
            }
            let mut reply = [0; 64];
            let (length, _) = stranger.socket.recv_from(&mut reply).await.unwrap();
            assert!(decode_packet(&reply[..length]).is_some());
            assert!(length <= request.len(), "a reply is no larger than what it replies to");
        };
        tokio::select! {
            () = answering.answer() => unreachable!("it answers for ever"),
            () = replies => {}
        }
        let mut bytes = [0; 64];
        assert!(stranger.socket.try_recv_from(&mut bytes).is_err(), "one reply");
        assert!(forger.try_recv_from(&mut bytes).is_err(), "none for another address");
    }
}
