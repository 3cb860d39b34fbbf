{{- define "hoplite.labels" -}}
app.kubernetes.io/name: hoplite
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "hoplite.directories" -}}
{{- $release := .Release.Name -}}
{{- $namespace := .Release.Namespace -}}
{{- $port := .Values.directory.port -}}
{{- range $index := until (int .Values.directory.replicas) -}}
{{- if $index }},{{ end -}}
{{ $release }}-directory-{{ $index }}.{{ $release }}-directory.{{ $namespace }}.svc:{{ $port }}
{{- end -}}
{{- end -}}

{{- define "hoplite.authArgs" -}}
{{- if .Values.auth.tokenSecret }}
- --token-file=/credentials/token
{{- end }}
{{- if .Values.auth.tlsSecret }}
- --tls-cert=/credentials/tls.crt
- --tls-key=/credentials/tls.key
- --tls-ca=/credentials/ca.crt
- --tls-name={{ .Values.auth.tlsName }}
{{- end }}
{{- if .Values.auth.insecure }}
- --insecure
{{- end }}
{{- if not (or .Values.auth.tokenSecret .Values.auth.tlsSecret .Values.auth.insecure) }}
{{- fail "choose who may connect: auth.tokenSecret, auth.tlsSecret, or auth.insecure=true" }}
{{- end }}
{{- end -}}

{{- define "hoplite.secretVolumes" -}}
{{- if .Values.auth.tokenSecret }}
- name: token
  secret:
    secretName: {{ .Values.auth.tokenSecret }}
    items: [{key: token, path: token}]
{{- end }}
{{- if .Values.auth.tlsSecret }}
- name: tls
  secret:
    secretName: {{ .Values.auth.tlsSecret }}
{{- end }}
- name: credentials
  emptyDir: {medium: Memory}
{{- end -}}

{{- define "hoplite.secretMounts" -}}
{{- if .Values.auth.tokenSecret }}
- {name: token, mountPath: /secrets/token, readOnly: true}
{{- end }}
{{- if .Values.auth.tlsSecret }}
- {name: tls, mountPath: /secrets/tls, readOnly: true}
{{- end }}
- {name: credentials, mountPath: /credentials}
{{- end -}}

{{- define "hoplite.securityContext" -}}
runAsNonRoot: true
runAsUser: 7400
runAsGroup: 7400
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "hoplite.prepareSecurityContext" -}}
runAsUser: 0
runAsGroup: 0
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL], add: [CHOWN, FOWNER]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}
