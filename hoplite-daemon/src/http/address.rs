use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// An address and port to listen on. A port alone means loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpAddress(pub SocketAddr);

/// The text is no port, and no address with a port.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not an address to listen on: write a port, such as 9740, or ADDR:PORT")]
pub struct NotAPlace {
    text: String,
}

impl FromStr for HttpAddress {
    type Err = NotAPlace;

    fn from_str(text: &str) -> Result<Self, NotAPlace> {
        let port = text.parse().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let address = port.or_else(|_| text.parse());
        address.map(Self).map_err(|_| NotAPlace { text: text.chars().take(64).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_loopback() {
        let parsed = |text: &str| text.parse::<HttpAddress>().map(|address| address.0.to_string());
        assert_eq!(parsed("9740").unwrap(), "127.0.0.1:9740");
        assert_eq!(parsed("0.0.0.0:9740").unwrap(), "0.0.0.0:9740");
        assert_eq!(parsed("[::1]:0").unwrap(), "[::1]:0");
        for text in ["", "65536", "localhost", "127.0.0.1", ":9740"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
