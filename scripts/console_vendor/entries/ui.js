export { Component, createContext, render } from "preact";
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { batch, computed, effect, signal, useComputed, useSignal } from "@preact/signals";
export { html } from "htm/preact";
