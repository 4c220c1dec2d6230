"""How a command reaches the admin address of a broker: whose certificate it trusts, and who logs in where that is required.

An address on loopback tells everybody how the broker is. One that other machines can reach asks for a login, and has TLS: then the user of
the broker's own address logs in, with the password that other commands use, and the TLS files of that address count. A password is not
asked for before the broker asks for a login, and is not sent without TLS to another machine.
"""

from __future__ import annotations

import base64
import ssl
import urllib.request
from urllib.parse import urlsplit

from penstock.cli.options import parsed_server_url
from penstock.cli.passwords import PASSWORD_VARIABLE, with_password
from penstock.clients.url import client_tls
from penstock.errors import AuthenticationRequired, InvalidRequest
from penstock.units import is_loopback


class AdminAccess:
    def __init__(self, server: str | None = None) -> None:
        """`server` is the address of the broker, with its user and TLS files; without one, there is no login."""
        self._server = server
        self._authorization: str | None = None

    @property
    def logged_in(self) -> bool:
        return self._authorization is not None

    def opener(self, url: str) -> urllib.request.OpenerDirector:
        """What opens a URL: without a proxy, because the address is named by its host, and is usually on this machine."""
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if url.startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=self._tls()))
        return urllib.request.build_opener(*handlers)

    def request(self, url: str, method: str = "GET") -> urllib.request.Request:
        """A request with the login, if there was one. It does not go along where the answer is a redirection."""
        request = urllib.request.Request(url, method=method)  # noqa: S310 - the scheme was checked
        if self._authorization is not None:
            request.add_unredirected_header("Authorization", self._authorization)
        return request

    def log_in(self, url: str) -> None:
        """Send the user and the password of the broker's address from now on. Raises AuthenticationRequired if it has none."""
        parts = urlsplit(url)
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise InvalidRequest(
                f"{parts.scheme}://{parts.netloc} asks for a login, and a password can be read on its way there: write https:// in --admin"
            )
        address = None if self._server is None else parsed_server_url(with_password(self._server))
        if address is None or address.user is None or address.password is None:
            raise AuthenticationRequired(
                f"{parts.scheme}://{parts.netloc} asks for a login: name yourself in the address of the broker, as in --server "
                f"flymq://user@host:port or in a context, and set {PASSWORD_VARIABLE}"
            )
        credentials = base64.b64encode(f"{address.user}:{address.password}".encode()).decode()
        self._authorization = f"Basic {credentials}"

    def _tls(self) -> ssl.SSLContext:
        return client_tls(**({} if self._server is None else parsed_server_url(self._server).tls_files))


class UnverifiedAccess(AdminAccess):
    """For a broker on this machine that is only to be recognized: any certificate will do, without a login."""

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
