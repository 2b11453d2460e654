import "./session.js";
