export { default as Plot } from "uplot";
