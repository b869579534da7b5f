"""Model Context Protocol (MCP): plays with a server's tools, and offers advice as tools."""
