"""Requests over HTTP/1.1, for clients, and for brokers that ask each other (see DECISIONS.md beside this file).

Transport (api) ◀── HttpTransport (pool) ──▶ HttpConnection (connection): one request at a time
                                         ──▶ Dialer (dialer): TCP, TLS and proxies (proxies)
"""
