//! Certificates for private servers that listen for TLS.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

/// An authority that nobody else knows, and a certificate from it for `localhost` and 127.0.0.1.
///
/// ```
/// # use xtask::certificates::Certificates;
/// let folder = tempfile::tempdir()?;
/// let certificates = Certificates::create(folder.path())?;
/// assert!(certificates.authority.is_file()); // what a client must trust
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug, Clone)]
pub struct Certificates {
    /// The certificate of the authority, in PEM.
    pub authority: PathBuf,
    /// The certificate of the server, in PEM.
    pub certificate: PathBuf,
    /// The private key of the server, in PEM.
    pub key: PathBuf,
}

impl Certificates {
    /// Makes them and writes them into the folder, over those that were there.
    pub fn create(folder: &Path) -> io::Result<Self> {
        let mut of_authority = CertificateParams::default();
        of_authority.distinguished_name.push(DnType::CommonName, "Oncebox tests");
        of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        of_authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let authority = CertifiedIssuer::self_signed(of_authority, key).map_err(io::Error::other)?;

        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut of_server = CertificateParams::new(names).map_err(io::Error::other)?;
        of_server.distinguished_name.push(DnType::CommonName, "localhost");
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = of_server.signed_by(&key, &authority).map_err(io::Error::other)?;

        let files = Self {
            authority: folder.join("authority.pem"),
            certificate: folder.join("certificate.pem"),
            key: folder.join("key.pem"),
        };
        fs::write(&files.authority, authority.pem())?;
        fs::write(&files.certificate, certificate.pem())?;
        fs::write(&files.key, key.serialize_pem())?;
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600))?;
        Ok(files)
    }
}
