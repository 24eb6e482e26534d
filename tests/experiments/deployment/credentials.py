"""Certificates and keys made on the spot: a SuperLink on the loopback that proves who it is, and nodes that do."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOOPBACK = "127.0.0.1"
PEM = serialization.Encoding.PEM
OPEN_SSH = serialization.PrivateFormat.OpenSSH
PLAIN = serialization.NoEncryption()


@dataclass(frozen=True)
class ServerCertificates:
    """Files of a certificate authority and of the server that it vouches for, on the loopback alone."""

    authority: Path
    server: Path
    server_key: Path

    @classmethod
    def made(cls, folder: Path) -> Self:
        """Write them into a folder; they hold for an hour."""
        authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
        authority, server = _name("authority of a test"), _name("localhost")
        hosts = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(LOOPBACK))])
        of_authority = (
            _certificate(authority, authority, authority_key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(authority_key, hashes.SHA256())
        )
        of_server = (
            _certificate(server, authority, server_key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(hosts, critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        files = cls(folder / "authority.pem", folder / "server.pem", folder / "server.key")
        files.authority.write_bytes(of_authority.public_bytes(PEM))
        files.server.write_bytes(of_server.public_bytes(PEM))
        files.server_key.write_bytes(server_key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, PLAIN))
        return files


@dataclass(frozen=True)
class NodeKey:
    """Files of a SuperNode's key pair, of a curve and in the form that Flower asks for."""

    private: Path
    public: Path

    @classmethod
    def made(cls, folder: Path, name: str) -> Self:
        """Write a new pair into a folder."""
        key = ec.generate_private_key(ec.SECP384R1())
        files = cls(folder / name, folder / f"{name}.pub")
        files.private.write_bytes(key.private_bytes(PEM, OPEN_SSH, PLAIN))
        public = serialization.PublicFormat.OpenSSH
        files.public.write_bytes(key.public_key().public_bytes(serialization.Encoding.OpenSSH, public))
        return files


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
    )
