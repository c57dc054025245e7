//! The name service: addresses of hosts by their names, and the other way around.

use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};

use crate::Error;

/// A name service. `VipNSInit` opens one, and dropping it is `VipNSShutdown`.
///
/// It knows the names that the program has [added](Self::add), those of a hosts file, and, from name to address, those
/// of the system's resolver.
#[derive(Clone, Debug, Default)]
pub struct NameService {
    names: BTreeMap<String, Vec<IpAddr>>,
    hosts: BTreeMap<IpAddr, String>,
}

impl NameService {
    /// The names of `/etc/hosts`. Without such a file the service begins empty.
    pub fn open() -> Self {
        std::fs::read_to_string("/etc/hosts").map(|text| Self::parse(&text)).unwrap_or_default()
    }
    /// The names of a text like that of `/etc/hosts`: lines of an address and its names. Lines that are none are
    /// skipped.
    pub fn parse(text: &str) -> Self {
        let mut service = Self::default();
        for line in text.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(Ok(host)) = words.next().map(str::parse) else { continue };
            words.for_each(|name| service.add(name, host));
        }
        service
    }
    /// Adds a name. The first name of an address is what [`host_by_addr`](Self::host_by_addr) tells.
    pub fn add(&mut self, name: &str, host: IpAddr) {
        self.names.entry(name.to_owned()).or_default().push(host);
        self.hosts.entry(host).or_insert_with(|| name.to_owned());
    }
    /// The address of a name; of several, that with the index (`VipNSGetHostByName`).
    ///
    /// # Errors
    /// The name is unknown, or has fewer addresses.
    pub fn host_by_name(&self, name: &str, index: usize) -> Result<IpAddr, Error> {
        let unknown = || Error::Name(format!("address {index} of {name}"));
        if let Some(hosts) = self.names.get(name) {
            return hosts.get(index).copied().ok_or_else(unknown);
        }
        let found = (name, 0).to_socket_addrs().map_err(|_| unknown())?;
        let mut hosts: Vec<IpAddr> = Vec::new();
        for address in found {
            if !hosts.contains(&address.ip()) {
                hosts.push(address.ip());
            }
        }
        hosts.get(index).copied().ok_or_else(unknown)
    }
    /// The name of an address (`VipNSGetHostByAddr`), as the program or the hosts file gives it.
    ///
    /// # Errors
    /// The address has no name.
    pub fn host_by_addr(&self, host: IpAddr) -> Result<&str, Error> {
        self.hosts.get(&host).map(String::as_str).ok_or_else(|| Error::Name(format!("name of {host}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReturnCode;

    #[test]
    fn names_and_addresses_are_those_of_the_hosts_file() {
        let text = "127.0.0.1 localhost me # comment\n\n# 10.0.0.1 not\nno address\nfd00::1 six me\n";
        let names = NameService::parse(text);
        let [four, six]: [IpAddr; 2] = ["127.0.0.1", "fd00::1"].map(|text| text.parse().unwrap());
        assert_eq!(names.host_by_name("me", 0).unwrap(), four);
        assert_eq!(names.host_by_name("me", 1).unwrap(), six);
        assert_eq!(names.host_by_name("me", 2).unwrap_err().code(), ReturnCode::ErrorNameService);
        assert_eq!(names.host_by_addr(four).unwrap(), "localhost");
        assert_eq!(names.host_by_addr(six).unwrap(), "six");
        let unknown = names.host_by_addr("10.0.0.1".parse().unwrap()).unwrap_err();
        assert_eq!(unknown.code(), ReturnCode::ErrorNameService);
    }

    #[test]
    fn an_address_is_its_own_name() {
        let address: IpAddr = "127.1.2.3".parse().unwrap();
        assert_eq!(NameService::default().host_by_name("127.1.2.3", 0).unwrap(), address);
    }
}
