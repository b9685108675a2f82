//! Where a request may not go: addresses at which clouds hand out their machines' credentials.
//!
//! Machines of the own network are allowed, because that is where most receivers are. Link-local and metadata
//! addresses are not, however they are written and whatever name stands for them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

/// Refuses what is no plain http or https address, or one that must not be asked.
pub(crate) fn check_url(url: &Url) -> Result<(), String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("it begins with `{}:`", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it holds a user or password; send them in `headers`".to_owned());
    }
    let forbidden = match url.host() {
        None => return Err("it has no host".to_owned()),
        Some(Host::Ipv4(ip)) => is_forbidden(IpAddr::V4(ip)),
        Some(Host::Ipv6(ip)) => is_forbidden(IpAddr::V6(ip)),
        Some(Host::Domain(_)) => false,
    };
    if forbidden {
        Err("it is a link-local or metadata address, which is never asked".to_owned())
    } else {
        Ok(())
    }
}

/// Whether this address is never asked.
pub(crate) fn is_forbidden(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_forbidden_v4(ip),
        IpAddr::V6(ip) => {
            let [first, second, ..] = ip.segments();
            let link_local = (first & 0xffc0) == 0xfe80;
            // The metadata services of two clouds have addresses of their own.
            let metadata = ip == Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254)
                || ip == Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254);
            let nobody = ip.is_unspecified() || ip.is_multicast();
            let mapped =
                !ip.is_loopback() && !nobody && inner_v4(ip, first, second).is_some_and(is_forbidden_v4);
            link_local || metadata || nobody || mapped
        }
    }
}

fn is_forbidden_v4(ip: Ipv4Addr) -> bool {
    ip.is_link_local()
        || ip.octets()[0] == 0
        || ip.is_multicast()
        || ip.is_broadcast()
        || ip == Ipv4Addr::new(100, 100, 100, 200)
        || ip == Ipv4Addr::new(192, 0, 0, 192)
}

/// An IPv4 address inside an IPv6 one: mapped, compatible, NAT64, 6to4.
fn inner_v4(ip: Ipv6Addr, first: u16, second: u16) -> Option<Ipv4Addr> {
    let octets = ip.octets();
    let last = Ipv4Addr::new(octets[12], octets[13], octets[14], octets[15]);
    match (first, second) {
        (0x2002, _) => Some(Ipv4Addr::new(octets[2], octets[3], octets[4], octets[5])),
        (0x0064, 0xff9b) => Some(last),
        (0, 0) if octets[4..10].iter().all(|octet| *octet == 0) => Some(last),
        _ => None,
    }
}

/// Looks names up once and leaves out what must not be asked; the connection is made to what is left.
#[derive(Debug)]
pub(crate) struct Resolver;

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let name = name.as_str().to_owned();
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let allowed: Vec<SocketAddr> =
                found.iter().copied().filter(|address| !is_forbidden(address.ip())).collect();
            if allowed.is_empty() {
                let text =
                    format!("`{name}` stands for a link-local or metadata address, which is never asked");
                return Err(text.into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metadata addresses are refused however they are written.
    #[test]
    fn metadata_addresses_are_refused_in_every_spelling() {
        for wrong in [
            "http://169.254.169.254/latest/meta-data/",
            "http://2852039166/",
            "http://0xa9fea9fe/",
            "http://0251.0376.0251.0376/",
            "http://169.254.43518/",
            "http://[::ffff:a9fe:a9fe]/",
            "http://[::ffff:169.254.169.254]/",
            "http://[::a9fe:a9fe]/",
            "http://[64:ff9b::a9fe:a9fe]/",
            "http://[2002:a9fe:a9fe::1]/",
            "http://[fe80::1]/",
            "http://[fd00:ec2::254]/",
            "http://[fd20:ce::254]/",
            "http://100.100.100.200/",
            "http://192.0.0.192/",
            "http://0/",
            "http://0.0.0.0/",
            "http://[::]/",
            "http://255.255.255.255/",
            "http://224.0.0.1/",
            "http://[ff02::1]/",
            "http://user:pw@example.com/",
            "file:///etc/passwd",
            "gopher://example.com/",
            "ftp://example.com/",
        ] {
            let url = Url::parse(wrong).unwrap();
            assert!(check_url(&url).is_err(), "{wrong}");
        }
        for good in [
            "http://127.0.0.1:8080/x",
            "http://[::1]/",
            "http://10.0.0.7/",
            "http://192.168.1.1/",
            "https://crm.internal/events",
            "http://[fd12:3456::1]/",
            "http://[2001:db8::1]/",
        ] {
            assert_eq!(check_url(&Url::parse(good).unwrap()), Ok(()), "{good}");
        }
    }
}
