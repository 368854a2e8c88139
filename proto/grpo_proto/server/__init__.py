"""What the servers share: the socket, the HTTP connection, and refusals.

listening.py     bind the listening socket; raise the limit of open files
connection.py    uvicorn's HTTP connection with limits on time, size and unread bytes
http_parser.py   serve a request that offers an upgrade as HTTP/1.1
loopback_names.py  without a token: answer under a loopback name only
refusal.py       the exception that becomes an error body
replies.py       a message, a refusal or a health report as starlette's Response
"""
