"""Model Context Protocol (MCP): the tools of a server as an environment, and advice offered as tools."""
