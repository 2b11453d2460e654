/** The page `/docs`: the API's description, by Swagger UI, with the user's token in every request. */

import { byId, element, problem, request, token } from "./session.js";

/** @typedef {{ headers: Record<string, string> }} SwaggerRequest */

const response = await request("/openapi.json");
if (response.ok) {
  const { SwaggerUIBundle } = /** @type {any} */ (window);
  SwaggerUIBundle({
    spec: await response.json(),
    domNode: byId("api"),
    deepLinking: true,
    validatorUrl: null,
    /** @param {SwaggerRequest} sent */
    requestInterceptor(sent) {
      const held = token();
      if (held) sent.headers.Authorization = `Bearer ${held}`;
      return sent;
    },
  });
} else {
  byId("api").replaceChildren(element("p", { className: "notice bad" }, await problem(response)));
}
